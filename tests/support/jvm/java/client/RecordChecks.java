import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Records in and out again. */
public final class RecordChecks {
    public static void recordsComeBackWholeUnderEveryCodec(Stage stage) throws Exception {
        stage.create(1);
        List<String> sent = new ArrayList<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (Producer<String, String> producer =
                    stage.producer("compression.type=" + codec, "linger.ms=20")) {
                for (int number = 0; number < 50; number++) {
                    ProducerRecord<String, String> record = new ProducerRecord<>(
                            stage.topic, 0, 1_600_000_000_000L + number, "k" + number,
                            codec + number);
                    record.headers().add(new RecordHeader("codec", bytes(codec)))
                            .add(new RecordHeader("none", null));
                    producer.send(record);
                    sent.add(codec + number);
                }
            }
        }
        try (Producer<String, String> producer = stage.producer()) {
            producer.send(new ProducerRecord<>(stage.topic, 0, null, (String) null)).get();
            sent.add(null);
        }
        List<ConsumerRecord<String, String>> read = stage.read("read_committed");
        Checks.equal(sent, Stage.values(read));
        ConsumerRecord<String, String> one = read.get(60);
        Checks.equal("k10", one.key());
        Checks.equal(1_600_000_000_010L, one.timestamp());
        Checks.equal(60L, one.offset());
        Checks.equal("gzip", new String(one.headers().lastHeader("codec").value(),
                StandardCharsets.UTF_8));
        Checks.equal(null, one.headers().lastHeader("none").value());
    }

    public static void anIdempotentProducerKeepsOrderWithFiveRequestsInFlight(Stage stage)
            throws Exception {
        stage.create(1);
        Producer<String, String> producer =
                stage.producer("batch.size=200", "linger.ms=0",
                        "max.in.flight.requests.per.connection=5");
        List<String> sent = new ArrayList<>();
        List<Future<RecordMetadata>> stored = new ArrayList<>();
        for (int number = 0; number < 500; number++) {
            sent.add("value " + number);
            stored.add(producer.send(stage.record(0, "value " + number)));
        }
        for (int number = 0; number < 500; number++) {
            Checks.equal((long) number, stored.get(number).get().offset());
        }
        Checks.equal(sent, stage.values("read_committed"));
    }

    public static void everyNumberOfAcknowledgementsIsServed(Stage stage) throws Exception {
        stage.create(1);
        for (String acks : List.of("0", "1", "all")) {
            try (Producer<String, String> producer =
                    stage.producer("acks=" + acks, "enable.idempotence=false")) {
                producer.send(stage.record(0, acks)).get();
            }
            Checks.until("acks " + acks, () -> stage.values("read_committed").contains(acks));
        }
    }

    public static void aRecordThatIsTooLargeIsRefusedAndTheNextOneIsNot(Stage stage)
            throws Exception {
        stage.create(1, "max.message.bytes", "1000");
        Producer<String, String> producer = stage.producer();
        Checks.refused(RecordTooLargeException.class,
                () -> producer.send(stage.record(0, "x".repeat(5000))).get());
        producer.send(stage.record(0, "small")).get();
        Checks.equal(List.of("small"), stage.values("read_committed"));
    }

    public static void aTopicThatMayNotBeMadeIsUnknownToTheConsumer(Stage stage) {
        Consumer<String, String> consumer =
                stage.consumer("allow.auto.create.topics=false", "default.api.timeout.ms=500");
        Checks.refused(TimeoutException.class, () -> consumer.position(assigned(consumer, stage)));
    }

    public static void offsetsAreFoundByTimeAndAtBothEnds(Stage stage) throws Exception {
        stage.create(2);
        Producer<String, String> producer = stage.producer();
        for (int number = 0; number < 20; number++) {
            producer.send(new ProducerRecord<>(stage.topic, 0, 1_000L + number, "k", "v")).get();
        }
        Consumer<String, String> consumer = stage.consumer();
        TopicPartition full = stage.partition(0);
        TopicPartition empty = stage.partition(1);
        Checks.equal(Map.of(full, 0L, empty, 0L), consumer.beginningOffsets(stage.partitions(2)));
        Checks.equal(Map.of(full, 20L, empty, 0L), consumer.endOffsets(stage.partitions(2)));
        Map<TopicPartition, OffsetAndTimestamp> found =
                consumer.offsetsForTimes(Map.of(full, 1_007L, empty, 1_007L));
        Checks.equal(7L, found.get(full).offset());
        Checks.equal(1_007L, found.get(full).timestamp());
        Checks.equal(null, found.get(empty));
        Checks.equal(null, consumer.offsetsForTimes(Map.of(full, 1_020L)).get(full));
    }

    public static void aConsumerSeeksPausesAndIsToldOfAnOffsetThatIsNotThere(Stage stage)
            throws Exception {
        stage.create(1);
        Producer<String, String> producer = stage.producer();
        for (int number = 0; number < 10; number++) {
            producer.send(stage.record(0, "v" + number)).get();
        }
        Consumer<String, String> consumer =
                stage.consumer("auto.offset.reset=none", "max.poll.records=3");
        TopicPartition place = assigned(consumer, stage);
        consumer.seek(place, 4);
        List<String> read = new ArrayList<>();
        Checks.until("records from 4", () -> {
            consumer.poll(Stage.SHORT).forEach(record -> read.add(record.value()));
            return read.size() == 6;
        });
        Checks.equal(List.of("v4", "v5", "v6", "v7", "v8", "v9"), read);
        consumer.seek(place, 0);
        consumer.pause(List.of(place));
        Checks.equal(0, consumer.poll(Stage.SHORT).count());
        consumer.resume(List.of(place));
        Checks.until("records again", () -> consumer.poll(Stage.SHORT).count() > 0);
        consumer.seek(place, 99);
        Checks.refused(OffsetOutOfRangeException.class, () -> Checks.until("the end", () -> {
            consumer.poll(Stage.SHORT);
            return false;
        }));
    }

    public static void aConsumerOfManyPartitionsReadsEachRecordOnceAlsoAfterPausing(Stage stage)
            throws Exception {
        stage.create(50);
        Producer<String, String> producer = stage.producer();
        Consumer<String, String> consumer =
                stage.consumer("isolation.level=read_committed", "fetch.max.wait.ms=50");
        consumer.assign(stage.partitions(50));
        consumer.seekToBeginning(stage.partitions(50));
        List<String> read = new ArrayList<>();
        List<String> expected = new ArrayList<>();
        for (int round = 0; round < 6; round++) {
            List<TopicPartition> paused = List.of(stage.partition(round), stage.partition(40));
            consumer.pause(paused);
            for (int number = 0; number < 50; number += 1 + round) {
                String value = "%d-%d".formatted(round, number);
                producer.send(stage.record(number, value)).get();
                expected.add(value);
            }
            consumer.poll(Stage.SHORT).forEach(record -> read.add(record.value()));
            consumer.resume(paused);
            Checks.until("all records", () -> {
                consumer.poll(Stage.SHORT).forEach(record -> read.add(record.value()));
                return read.size() >= expected.size();
            });
        }
        Checks.equal(expected.stream().sorted().toList(), read.stream().sorted().toList());
    }

    private static TopicPartition assigned(Consumer<String, String> consumer, Stage stage) {
        consumer.assign(List.of(stage.partition(0)));
        return stage.partition(0);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private RecordChecks() { }
}

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies one topic into another, each record exactly once, whatever is killed meanwhile.
 *
 * <p>CopyExactlyOnce ADDRESS FROM TO GROUP NAME [SETTING=VALUE ...]. Start as many as you like, each
 * with a name of its own, and start one that died again under the same name. Ctrl-C ends it.
 */
public final class CopyExactlyOnce {
    public static void main(String[] arguments) {
        String from = arguments[1];
        String to = arguments[2];
        Properties settings = settings(arguments);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
                KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            endOnInterrupt(consumer);
            // Fences the one that had this name before, and ends what it left open.
            producer.initTransactions();
            consumer.subscribe(List.of(from));
            System.out.println("ready");
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (!records.isEmpty()) {
                    copy(records, to, consumer, producer);
                }
            }
        } catch (WakeupException interrupted) {
            System.out.println("bye");
        }
    }

    /** The output and how far the input was read are one transaction. */
    private static void copy(
            ConsumerRecords<String, String> records,
            String to,
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer) {
        producer.beginTransaction();
        try {
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(to, record.key(), record.value()));
            }
            // The group's metadata is the fence: had we lost our partitions to another member, the
            // broker would refuse these offsets, and with them the transaction.
            producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
            producer.commitTransaction();
            System.out.println("committed " + records.count());
        } catch (KafkaException failed) {
            // Where this producer is fenced for good it throws, and the process ends.
            producer.abortTransaction();
            readAgain(consumer);
            System.out.println("aborted " + records.count() + ": " + failed);
        }
    }

    /** Back to what the group has committed, or to the beginning. */
    private static void readAgain(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed =
                consumer.committed(consumer.assignment());
        committed.forEach((partition, offset) -> {
            if (offset == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, offset);
            }
        });
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("transactional.id", arguments[3] + "-" + arguments[4]);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        for (int number = 5; number < arguments.length; number++) {
            String[] pair = arguments[number].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }

    private static void endOnInterrupt(KafkaConsumer<String, String> consumer) {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
    }
}

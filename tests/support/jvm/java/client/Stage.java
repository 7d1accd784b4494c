import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What one check works with: clients of the broker, and a topic that no other check uses. */
final class Stage implements AutoCloseable {
    static final Duration SHORT = Duration.ofMillis(100);

    final String topic;
    final String group;
    final Admin admin;
    private final String address;
    private final List<AutoCloseable> opened = new ArrayList<>();

    Stage(String address, String name) {
        this.address = address;
        this.topic = "java-" + name;
        this.group = "group-" + name;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        this.admin = opened(Admin.create(settings));
    }

    /** Make the topic with so many partitions and these settings. */
    void create(int partitions, String... configs) throws ExecutionException, InterruptedException {
        Map<String, String> named = IntStream.range(0, configs.length / 2).boxed()
                .collect(Collectors.toMap(n -> configs[2 * n], n -> configs[2 * n + 1]));
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(named)))
                .all().get();
    }

    /**
     * The group's offset as the broker has it now; null where it has none.
     *
     * Consumer.committed() may answer from a request that was still in flight when the member was
     * assigned its partitions, and so from before whatever was committed since.
     */
    OffsetAndMetadata committed(TopicPartition place)
            throws ExecutionException, InterruptedException {
        return admin.listConsumerGroupOffsets(
                        group, new ListConsumerGroupOffsetsOptions().requireStable(true))
                .partitionsToOffsetAndMetadata().get().get(place);
    }

    TopicPartition partition(int number) {
        return new TopicPartition(topic, number);
    }

    List<TopicPartition> partitions(int count) {
        return IntStream.range(0, count).mapToObj(this::partition).collect(Collectors.toList());
    }

    ProducerRecord<String, String> record(int partition, String value) {
        return new ProducerRecord<>(topic, partition, "key", value);
    }

    /** A producer with these settings besides the client's defaults. */
    Producer<String, String> producer(String... settings) {
        Properties all = with(settings);
        all.put("key.serializer", StringSerializer.class.getName());
        all.put("value.serializer", StringSerializer.class.getName());
        return opened(new KafkaProducer<String, String>(all));
    }

    /** A transactional producer that has initialised itself. */
    Producer<String, String> transactional(String name, String... settings) {
        List<String> all = new ArrayList<>(List.of(settings));
        all.add("transactional.id=" + topic + "-" + name);
        Producer<String, String> producer = producer(all.toArray(new String[0]));
        producer.initTransactions();
        return producer;
    }

    /** The producer of the claim with this epoch of a name. */
    Producer<String, String> owned(String name, int epoch) {
        Producer<String, String> producer =
                producer("transactional.id=__fencelog.own//" + name + "~" + epoch);
        producer.initTransactions();
        return producer;
    }

    /** Claims the topic's first partition, for a group or for writes (null), until the end. */
    void claimed(String ofGroup, String name) throws IOException {
        opened(new Claimant(address)).own(ofGroup, topic + "/0", name);
    }

    /** A consumer of the check's group that reads committed records from the beginning. */
    Consumer<String, String> consumer(String... settings) {
        Properties all = new Properties();
        all.put("group.id", group);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.put("isolation.level", "read_committed");
        all.put("session.timeout.ms", "6000");
        all.put("heartbeat.interval.ms", "100");
        all.put("key.deserializer", StringDeserializer.class.getName());
        all.put("value.deserializer", StringDeserializer.class.getName());
        all.putAll(with(settings));
        return opened(new KafkaConsumer<String, String>(all));
    }

    /** All that the isolation shows of the topic's first partition now. */
    List<ConsumerRecord<String, String>> read(String isolation) {
        List<ConsumerRecord<String, String>> read = new ArrayList<>();
        try (Consumer<String, String> consumer =
                consumer("isolation.level=" + isolation, "group.id=" + group + "-reader")) {
            TopicPartition place = partition(0);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            Checks.until("read to " + end, () -> {
                consumer.poll(SHORT).forEach(read::add);
                return consumer.position(place) >= end;
            });
        }
        return read;
    }

    List<String> values(String isolation) {
        return values(read(isolation));
    }

    static List<String> values(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).collect(Collectors.toList());
    }

    private Properties with(String... settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", address);
        for (String setting : settings) {
            String[] pair = setting.split("=", 2);
            all.put(pair[0], pair[1]);
        }
        return all;
    }

    private <T extends AutoCloseable> T opened(T client) {
        opened.add(client);
        return client;
    }

    @Override
    public void close() {
        for (int number = opened.size() - 1; number >= 0; number--) {
            try {
                opened.get(number).close();
            } catch (Exception ignored) {
                // A check may leave a fenced client behind.
            }
        }
    }
}

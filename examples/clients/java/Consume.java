import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads as a member of a group until it has seen enough: Consume ADDRESS TOPIC GROUP COUNT. */
public final class Consume {
    public static void main(String[] arguments) {
        int left = Integer.parseInt(arguments[3]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        // Records of aborted transactions are not for us, nor of those that are still open.
        settings.put("isolation.level", "read_committed");
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);

        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(arguments[1]));
            while (left > 0) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.topic() + "-" + record.partition() + "@"
                            + record.offset() + " " + record.key() + " " + record.value());
                    left--;
                }
                // After the work, so that a crash repeats some of it and loses none.
                consumer.commitSync();
            }
        }
    }
}

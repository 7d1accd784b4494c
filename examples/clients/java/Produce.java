import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes numbered greetings: Produce ADDRESS TOPIC COUNT. */
public final class Produce {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        // The client's defaults already are acks=all and enable.idempotence=true: a retry after a
        // lost answer leaves one copy.

        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < count; number++) {
                String key = "key-" + number % 3;
                RecordMetadata stored =
                        producer.send(new ProducerRecord<>(topic, key, "hello " + number)).get();
                System.out.println(stored + " hello " + number);
            }
        }
    }
}

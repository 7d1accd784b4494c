import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;

/**
 * Copies a topic, and counts its records by their last digit in a store behind a repartition topic.
 *
 * <p>StreamsCopy ADDRESS FROM TO APPLICATION STATE [SETTING=VALUE ...]. The counts go to TO-counts:
 * without a cache every update is written, so each key's values must be 1, 2, 3 and so on.
 */
public final class StreamsCopy {
    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.putAll(Map.of(
                "bootstrap.servers", arguments[0],
                "application.id", arguments[3],
                "state.dir", arguments[4],
                "processing.guarantee", "exactly_once_v2",
                "statestore.cache.max.bytes", "0",
                "default.key.serde", Serdes.StringSerde.class.getName(),
                "default.value.serde", Serdes.StringSerde.class.getName()));
        for (int each = 5; each < arguments.length; each++) {
            String[] pair = arguments[each].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> input = builder.stream(arguments[1]);
        input.to(arguments[2]);
        input.groupBy((key, value) -> value.substring(value.length() - 1))
                .count()
                .toStream()
                .mapValues(String::valueOf)
                .to(arguments[2] + "-counts");
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setUncaughtExceptionHandler(error -> {
            System.err.println("thread replaced: " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(20));
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }

    private StreamsCopy() {}
}

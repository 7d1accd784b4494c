import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies a topic with Flink's exactly-once sink, in a cluster of its own.
 *
 * <p>FlinkCopy ADDRESS FROM TO GROUP CHECKPOINTS. It goes on from the newest complete checkpoint of
 * that folder; what the checkpoint has prepared is committed then, and what came later aborted.
 */
public final class FlinkCopy {
    public static void main(String[] arguments) throws Exception {
        Path checkpoints = Files.createDirectories(Path.of(arguments[4])).toAbsolutePath();
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "500 ms");
        settings.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("execution.checkpointing.file-merging.enabled", "false");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "1 s");
        newest(checkpoints).ifPresent(found ->
                settings.setString("execution.state-recovery.path", found.toUri().toString()));
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(arguments[0])
                .setTopics(arguments[1])
                .setGroupId(arguments[3])
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setProperty("isolation.level", "read_committed")
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(arguments[0])
                .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                        .setTopic(arguments[2])
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(arguments[3])
                .setProperty("transaction.timeout.ms", "30000")
                .build();
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "in")
                .sinkTo(sink);
        environment.execute("copy");
    }

    private static Optional<Path> newest(Path checkpoints) throws IOException {
        try (Stream<Path> all = Files.walk(checkpoints)) {
            return all.filter(path -> path.endsWith("_metadata"))
                    .map(Path::getParent)
                    .max(Comparator.comparingInt(FlinkCopy::number));
        }
    }

    private static int number(Path checkpoint) {
        return Integer.parseInt(checkpoint.getFileName().toString().substring("chk-".length()));
    }

    private FlinkCopy() {}
}

import java.util.Map;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints name and type of the settings of Kafka's brokers or topics, whichever is asked for. */
public final class ConfigNames {
    public static void main(String[] scope) {
        Map<String, ConfigDef> all =
                Map.of("broker", KafkaConfig.configDef(), "topic", LogConfig.configDefCopy());
        for (ConfigDef.ConfigKey each : all.get(scope[0]).configKeys().values()) {
            System.out.println(each.name + " " + each.type);
        }
    }
}

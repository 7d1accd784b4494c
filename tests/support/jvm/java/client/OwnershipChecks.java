import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TopicAuthorizationException;

/** Partitions that somebody owns. */
public final class OwnershipChecks {
    public static void ownershipRecordsArePassedWhereverTheyStand(Stage stage) throws Exception {
        stage.create(1);
        stage.claimed(null, stage.topic);
        Producer<String, String> producer = stage.owned(stage.topic, 1);
        for (String end : List.of("aborted", "kept")) {
            producer.beginTransaction();
            producer.send(stage.record(0, end)).get();
            stage.claimed("inside " + end, null);
            producer.send(stage.record(0, end + " too")).get();
            if (end.equals("kept")) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        stage.claimed("last", null);
        Checks.equal(List.of("kept", "kept too"), stage.values("read_committed"));
        Checks.equal(
                List.of("aborted", "aborted too", "kept", "kept too"),
                stage.values("read_uncommitted"));
    }

    public static void aSeveredOwnersProducerIsFencedInsideItsTransaction(Stage stage)
            throws Exception {
        stage.create(1);
        stage.claimed(null, stage.topic);
        Producer<String, String> zombie = stage.owned(stage.topic, 1);
        zombie.beginTransaction();
        zombie.send(stage.record(0, "of a zombie")).get();
        stage.claimed(null, stage.topic);
        Checks.refused(ProducerFencedException.class, () -> {
            zombie.commitTransaction();
        });
        Checks.equal(List.of(), stage.values("read_committed"));
    }

    public static void aSeveredOwnersProducerIsFencedAsItBegins(Stage stage) throws Exception {
        stage.create(1);
        stage.claimed(null, stage.topic);
        Producer<String, String> zombie = stage.owned(stage.topic, 1);
        stage.claimed(null, stage.topic);
        zombie.beginTransaction();
        Checks.refused(InvalidProducerEpochException.class, () -> {
            zombie.send(stage.record(0, "late")).get();
        });
        Checks.refused(ProducerFencedException.class, () -> {
            zombie.abortTransaction();
        });
        Checks.equal(List.of(), stage.values("read_uncommitted"));
    }

    public static void whoIsNotTheOwnerIsToldSoWithoutRetries(Stage stage) throws Exception {
        stage.create(1);
        Consumer<String, String> consumer = stage.consumer();
        consumer.assign(stage.partitions(1));
        stage.claimed(null, null);
        stage.claimed(stage.group, null);
        Producer<String, String> producer = stage.producer();
        Checks.refused(TopicAuthorizationException.class, () -> {
            producer.send(stage.record(0, "of a stranger")).get();
        });
        Checks.refused(TopicAuthorizationException.class, () -> {
            consumer.commitSync(Map.of(stage.partition(0), new OffsetAndMetadata(1)));
        });
    }

    private OwnershipChecks() { }
}

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Transactions, and offsets in them. */
public final class TransactionChecks {
    public static void aReaderSeesWhatWasCommittedAndNothingElse(Stage stage) throws Exception {
        stage.create(1);
        Producer<String, String> producer = stage.transactional("a");
        for (int number = 0; number < 6; number++) {
            producer.beginTransaction();
            producer.send(stage.record(0, "first " + number));
            producer.send(stage.record(0, "second " + number)).get();
            if (number % 2 == 0) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        producer.beginTransaction();
        producer.send(stage.record(0, "open")).get();
        Checks.equal(
                List.of("first 0", "second 0", "first 2", "second 2", "first 4", "second 4"),
                stage.values("read_committed"));
        Checks.equal(13, stage.values("read_uncommitted").size());
        producer.abortTransaction();
    }

    public static void emptyTransactionsEndBothWays(Stage stage) {
        Producer<String, String> producer = stage.transactional("a");
        producer.beginTransaction();
        producer.commitTransaction();
        producer.beginTransaction();
        producer.abortTransaction();
    }

    public static void eachTransactionHasAnEpochOfItsOwn(Stage stage) throws Exception {
        stage.create(1);
        Producer<String, String> producer = stage.transactional("a");
        List<Integer> epochs = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            producer.beginTransaction();
            producer.send(stage.record(0, "v" + number)).get();
            epochs.add(description(stage).producerEpoch());
            if (number % 2 == 0) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        int first = epochs.get(0);
        Checks.equal(List.of(first, first + 1, first + 2, first + 3), epochs);
    }

    public static void theSecondOfOneNameFencesTheFirstAndAbortsWhatItLeftOpen(Stage stage)
            throws Exception {
        stage.create(1);
        Producer<String, String> first = stage.transactional("a");
        first.beginTransaction();
        first.send(stage.record(0, "of a zombie")).get();
        Producer<String, String> second = stage.transactional("a");
        second.beginTransaction();
        second.send(stage.record(0, "of its successor")).get();
        Checks.refused(ProducerFencedException.class, () -> {
            first.commitTransaction();
        });
        second.commitTransaction();
        Checks.equal(List.of("of its successor"), stage.values("read_committed"));
    }

    public static void aProducerThatMissedItsTimeoutIsRefusedAndLeavesNothing(Stage stage)
            throws Exception {
        stage.create(1);
        Producer<String, String> producer = stage.transactional("a", "transaction.timeout.ms=200");
        producer.beginTransaction();
        producer.send(stage.record(0, "too late")).get();
        Checks.until("the timeout", () -> description(stage).state() == TransactionState.COMPLETE_ABORT);
        Checks.refused(RuntimeException.class, () -> {
            producer.commitTransaction();
        });
        Checks.equal(List.of(), stage.values("read_committed"));
        Checks.refused(KafkaException.class,
                () -> stage.transactional("b", "transaction.timeout.ms=2000000000"));
    }

    public static void offsetsCommitWithTheOutputOrNotAtAll(Stage stage) throws Exception {
        stage.create(1);
        Consumer<String, String> consumer = member(stage);
        Producer<String, String> producer = stage.transactional("a");
        TopicPartition place = stage.partition(0);
        for (long offset = 1; offset <= 4; offset++) {
            producer.beginTransaction();
            producer.send(stage.record(0, "output " + offset));
            producer.sendOffsetsToTransaction(
                    Map.of(place, new OffsetAndMetadata(offset, "note " + offset)),
                    consumer.groupMetadata());
            if (offset % 2 == 0) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
            }
        }
        OffsetAndMetadata committed = stage.committed(place);
        Checks.equal(3L, committed.offset());
        Checks.equal("note 3", committed.metadata());
        Checks.equal(List.of("output 1", "output 3"), stage.values("read_committed"));
    }

    public static void aMemberOfAnOlderGenerationCommitsNoOffsetsInATransaction(Stage stage)
            throws Exception {
        stage.create(1);
        Consumer<String, String> consumer = member(stage);
        ConsumerGroupMetadata before = consumer.groupMetadata();
        consumer.enforceRebalance();
        Checks.until("the next generation", () -> {
            consumer.poll(Stage.SHORT);
            return consumer.groupMetadata().generationId() > before.generationId();
        });
        Producer<String, String> producer = stage.transactional("a");
        producer.beginTransaction();
        producer.send(stage.record(0, "of a zombie"));
        Checks.refused(CommitFailedException.class, () -> {
            producer.sendOffsetsToTransaction(
                    Map.of(stage.partition(0), new OffsetAndMetadata(1)), before);
        });
        producer.abortTransaction();
        producer.beginTransaction();
        producer.sendOffsetsToTransaction(
                Map.of(stage.partition(0), new OffsetAndMetadata(2)), consumer.groupMetadata());
        producer.commitTransaction();
        Checks.equal(List.of(), stage.values("read_committed"));
    }

    private static Consumer<String, String> member(Stage stage) {
        Consumer<String, String> consumer = stage.consumer();
        consumer.subscribe(List.of(stage.topic));
        Checks.until("the assignment", () -> {
            consumer.poll(Stage.SHORT);
            return !consumer.assignment().isEmpty();
        });
        return consumer;
    }

    private static TransactionDescription description(Stage stage) {
        String name = stage.topic + "-a";
        try {
            return stage.admin.describeTransactions(List.of(name)).description(name).get();
        } catch (Exception thrown) {
            throw new AssertionError(thrown);
        }
    }

    private TransactionChecks() { }
}

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;

/** Members of groups: shares, generations, cooperative and static ones, and what they commit. */
public final class GroupChecks {
    private static final String COOPERATIVE =
            "partition.assignment.strategy=" + CooperativeStickyAssignor.class.getName();

    /** Notes which partitions were taken away. */
    private static final class Revoked implements ConsumerRebalanceListener {
        final List<TopicPartition> partitions = new ArrayList<>();

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            partitions.addAll(revoked);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) { }
    }

    public static void membersShareEveryPartitionAndOneThatLeavesGivesItsShareBack(Stage stage)
            throws Exception {
        stage.create(4);
        Consumer<String, String> first = member(stage, new Revoked());
        settle(stage, 4, first);
        Consumer<String, String> second = member(stage, new Revoked());
        settle(stage, 2, first, second);
        second.close();
        settle(stage, 4, first);
    }

    public static void cooperativeMembersGiveUpOnlyWhatMoves(Stage stage) throws Exception {
        stage.create(4);
        Revoked revoked = new Revoked();
        Consumer<String, String> first = member(stage, revoked, COOPERATIVE);
        settle(stage, 4, first);
        Consumer<String, String> second = member(stage, new Revoked(), COOPERATIVE);
        settle(stage, 2, first, second);
        Checks.equal(second.assignment(), Set.copyOf(revoked.partitions));
        Checks.equal(2, revoked.partitions.size());
    }

    public static void aStaticMemberComesBackToItsShareWithoutARebalance(Stage stage)
            throws Exception {
        stage.create(4);
        Revoked revoked = new Revoked();
        Consumer<String, String> other = member(stage, revoked, "group.instance.id=other");
        Consumer<String, String> before = member(stage, new Revoked(), "group.instance.id=one");
        settle(stage, 2, other, before);
        Set<TopicPartition> share = before.assignment();
        int generation = other.groupMetadata().generationId();
        revoked.partitions.clear();
        before.close();
        Consumer<String, String> after = member(stage, new Revoked(), "group.instance.id=one");
        settle(stage, 2, other, after);
        Checks.equal(share, after.assignment());
        Checks.equal(generation, after.groupMetadata().generationId());
        Checks.equal(List.of(), revoked.partitions);
    }

    public static void theSecondOfOneInstanceNameFencesTheFirst(Stage stage) throws Exception {
        stage.create(1);
        Consumer<String, String> first = member(stage, new Revoked(), "group.instance.id=one");
        settle(stage, 1, first);
        Consumer<String, String> second = member(stage, new Revoked(), "group.instance.id=one");
        settle(stage, 1, second);
        Checks.refused(FencedInstanceIdException.class, () -> Checks.until("the fence", () -> {
            first.poll(Stage.SHORT);
            return false;
        }));
    }

    public static void aMemberOfAnOlderGenerationCommitsNothing(Stage stage) throws Exception {
        stage.create(2);
        Consumer<String, String> zombie = member(stage, new Revoked(), "max.poll.interval.ms=300");
        settle(stage, 2, zombie);
        Consumer<String, String> heir = member(stage, new Revoked());
        settle(stage, 2, heir);
        heir.commitSync(Map.of(stage.partition(0), new OffsetAndMetadata(5)));
        Checks.refused(CommitFailedException.class, () -> {
            zombie.commitSync(Map.of(stage.partition(0), new OffsetAndMetadata(1)));
        });
        Checks.equal(5L, stage.committed(stage.partition(0)).offset());
    }

    public static void aGroupGoesOnWhereItCommitted(Stage stage) throws Exception {
        stage.create(2);
        Producer<String, String> producer = stage.producer();
        Set<String> sent = new HashSet<>();
        for (int number = 0; number < 40; number++) {
            producer.send(stage.record(number % 2, "v" + number)).get();
            sent.add("v" + number);
        }
        List<String> read = new ArrayList<>();
        for (int life = 1; life <= 4; life++) {
            int enough = 10 * life;
            try (Consumer<String, String> consumer =
                    member(stage, new Revoked(), "max.poll.records=10")) {
                Checks.until("some records", () -> {
                    consumer.poll(Stage.SHORT).forEach(record -> read.add(record.value()));
                    return read.size() == enough;
                });
                consumer.commitSync();
            }
        }
        Checks.equal(40, read.size());
        Checks.equal(sent, Set.copyOf(read));
    }

    public static void commitsInTheBackgroundAndAtCloseAreKept(Stage stage) throws Exception {
        stage.create(1);
        Producer<String, String> producer = stage.producer();
        for (int number = 0; number < 7; number++) {
            producer.send(stage.record(0, "v" + number)).get();
        }
        try (Consumer<String, String> consumer =
                member(stage, new Revoked(), "enable.auto.commit=true")) {
            List<ConsumerRecord<String, String>> read = new ArrayList<>();
            Checks.until("the records", () -> {
                consumer.poll(Stage.SHORT).forEach(read::add);
                return read.size() == 7;
            });
        }
        Checks.equal(7L, stage.committed(stage.partition(0)).offset());
    }

    private static Consumer<String, String> member(
            Stage stage, Revoked revoked, String... settings) {
        Consumer<String, String> consumer = stage.consumer(settings);
        consumer.subscribe(List.of(stage.topic), revoked);
        return consumer;
    }

    /** Polls all until each has so many partitions, all different. */
    @SafeVarargs
    private static void settle(Stage stage, int each, Consumer<String, String>... members) {
        Checks.until("shares of " + each, () -> {
            Set<TopicPartition> all = new HashSet<>();
            boolean even = true;
            for (Consumer<String, String> member : members) {
                member.poll(Stage.SHORT);
                even = even && member.assignment().size() == each;
                all.addAll(member.assignment());
            }
            return even && all.size() == each * members.length;
        });
    }

    private GroupChecks() { }
}

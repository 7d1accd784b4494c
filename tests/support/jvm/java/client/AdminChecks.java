import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ClassicGroupState;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The admin client. */
public final class AdminChecks {
    public static void topicsAreMadeDescribedGrownAndDeleted(Stage stage) throws Exception {
        stage.create(2, "retention.ms", "12345");
        TopicDescription found = description(stage);
        Checks.equal(2, found.partitions().size());
        Checks.equal(1, found.partitions().get(0).isr().size());
        Checks.isTrue(stage.admin.listTopics().names().get().contains(stage.topic), "listed");
        Checks.equal(stage.topic,
                stage.admin.describeTopics(TopicCollection.ofTopicIds(List.of(found.topicId())))
                        .allTopicIds().get().get(found.topicId()).name());
        stage.admin.createPartitions(Map.of(stage.topic, NewPartitions.increaseTo(3))).all().get();
        Checks.equal(3, description(stage).partitions().size());
        Checks.refused(InvalidPartitionsException.class, () -> stage.admin
                .createPartitions(Map.of(stage.topic, NewPartitions.increaseTo(2))).all().get());
        stage.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(found.topicId()))).all().get();
        Checks.refused(UnknownTopicOrPartitionException.class, () -> description(stage));
    }

    public static void topicsThatCannotBeAreRefused(Stage stage) throws Exception {
        stage.create(1);
        Checks.refused(TopicExistsException.class, () -> {
            stage.create(1);
        });
        Checks.refused(InvalidTopicException.class, () -> make(stage, new NewTopic("a b", 1,
                (short) 1)));
        Checks.refused(InvalidPartitionsException.class, () -> make(stage,
                new NewTopic(stage.topic + "-0", 0, (short) 1)));
        Checks.refused(InvalidReplicationFactorException.class, () -> make(stage,
                new NewTopic(stage.topic + "-3", 1, (short) 3)));
        Checks.refused(InvalidConfigurationException.class, () -> make(stage,
                new NewTopic(stage.topic + "-c", 1, (short) 1)
                        .configs(Map.of("retention.ms", "soon"))));
    }

    public static void settingsAreChangedOneByOneAndSayWhereTheyComeFrom(Stage stage)
            throws Exception {
        stage.create(1, "retention.ms", "12345");
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, stage.topic);
        stage.admin.incrementalAlterConfigs(Map.of(topic, List.of(
                change("retention.ms", null, AlterConfigOp.OpType.DELETE),
                change("cleanup.policy", "compact", AlterConfigOp.OpType.APPEND),
                change("segment.ms", "60000", AlterConfigOp.OpType.SET)))).all().get();
        Config config = stage.admin.describeConfigs(List.of(topic)).all().get().get(topic);
        Checks.equal(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.get("retention.ms").source());
        Checks.equal("delete,compact", config.get("cleanup.policy").value());
        Checks.equal(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG,
                config.get("segment.ms").source());
        Checks.refused(InvalidConfigurationException.class, () -> stage.admin
                .incrementalAlterConfigs(Map.of(topic, List.of(
                        change("segment.ms", "x", AlterConfigOp.OpType.SET)))).all().get());
        String node = stage.admin.describeCluster().controller().get().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, node);
        Checks.equal(node, stage.admin.describeConfigs(List.of(broker)).all().get().get(broker)
                .get("node.id").value());
    }

    public static void recordsAreDeletedAndOffsetsListed(Stage stage) throws Exception {
        stage.create(1);
        Producer<String, String> producer = stage.producer();
        for (int number = 0; number < 10; number++) {
            long timestamp = 1_000L + (number == 4 ? 500 : number);
            producer.send(new ProducerRecord<>(stage.topic, 0, timestamp, "k", "v" + number)).get();
        }
        TopicPartition place = stage.partition(0);
        Checks.equal(4L, listed(stage, OffsetSpec.maxTimestamp()).offset());
        Checks.equal(3L, listed(stage, OffsetSpec.forTimestamp(1_003)).offset());
        Checks.equal(6L, stage.admin
                .deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(6)))
                .lowWatermarks().get(place).get().lowWatermark());
        Checks.equal(6L, listed(stage, OffsetSpec.earliest()).offset());
        Checks.equal(10L, listed(stage, OffsetSpec.latest()).offset());
        Checks.equal(List.of("v6", "v7", "v8", "v9"), stage.values("read_committed"));
    }

    public static void groupsAreListedDescribedMovedAndDeleted(Stage stage) throws Exception {
        stage.create(2);
        Consumer<String, String> consumer = stage.consumer("group.instance.id=one");
        consumer.subscribe(List.of(stage.topic));
        Checks.until("the assignment", () -> {
            consumer.poll(Stage.SHORT);
            return consumer.assignment().size() == 2;
        });
        TopicPartition place = stage.partition(0);
        consumer.commitSync(Map.of(place, new OffsetAndMetadata(0, "here")));
        Collection<GroupListing> groups = stage.admin.listGroups().all().get();
        Checks.isTrue(groups.stream().anyMatch(each -> each.groupId().equals(stage.group)), "listed");
        ClassicGroupDescription found = group(stage);
        Checks.equal(ClassicGroupState.STABLE, found.state());
        Checks.equal(Set.copyOf(stage.partitions(2)),
                found.members().iterator().next().assignment().topicPartitions());
        Checks.equal("one", found.members().iterator().next().groupInstanceId().get());
        Checks.refused(GroupNotEmptyException.class, () -> stage.admin
                .deleteConsumerGroups(List.of(stage.group)).all().get());
        stage.admin.removeMembersFromConsumerGroup(stage.group,
                new RemoveMembersFromConsumerGroupOptions()).all().get();
        Checks.equal(ClassicGroupState.EMPTY, group(stage).state());
        stage.admin.alterConsumerGroupOffsets(stage.group,
                Map.of(place, new OffsetAndMetadata(7), stage.partition(1),
                        new OffsetAndMetadata(8))).all().get();
        stage.admin.deleteConsumerGroupOffsets(stage.group, Set.of(stage.partition(1))).all().get();
        Map<TopicPartition, OffsetAndMetadata> offsets = stage.admin
                .listConsumerGroupOffsets(stage.group).partitionsToOffsetAndMetadata().get();
        Checks.equal(Map.of(place, 7L), offsets.entrySet().stream()
                .collect(Collectors.toMap(Map.Entry::getKey, each -> each.getValue().offset())));
        stage.admin.deleteConsumerGroups(List.of(stage.group)).all().get();
        Checks.refused(GroupIdNotFoundException.class, () -> stage.admin
                .deleteConsumerGroups(List.of(stage.group)).all().get());
    }

    public static void transactionsAreListedDescribedAndFenced(Stage stage) throws Exception {
        stage.create(1);
        Producer<String, String> producer = stage.transactional("a");
        producer.beginTransaction();
        producer.send(stage.record(0, "open")).get();
        String name = stage.topic + "-a";
        Checks.isTrue(stage.admin.listTransactions().all().get().stream()
                .anyMatch(each -> each.transactionalId().equals(name)
                        && each.state() == TransactionState.ONGOING), "listed");
        TransactionDescription found = transaction(stage, name);
        Checks.equal(Set.of(stage.partition(0)), found.topicPartitions());
        ProducerState state = stage.admin.describeProducers(stage.partitions(1)).all().get()
                .get(stage.partition(0)).activeProducers().get(0);
        Checks.equal(found.producerId(), state.producerId());
        Checks.equal(0L, state.currentTransactionStartOffset().getAsLong());
        stage.admin.fenceProducers(List.of(name)).all().get();
        Checks.equal(TransactionState.EMPTY, transaction(stage, name).state());
        Checks.refused(ProducerFencedException.class, () -> {
            producer.commitTransaction();
        });
        Checks.equal(List.of(), stage.values("read_committed"));
    }

    public static void theClusterDescribesItself(Stage stage) throws Exception {
        Checks.equal(1, stage.admin.describeCluster().nodes().get().size());
        Checks.isTrue(!stage.admin.describeCluster().clusterId().get().isEmpty(), "has an id");
        Checks.equal(2, (int) stage.admin.describeFeatures().featureMetadata().get()
                .finalizedFeatures().get("transaction.version").maxVersionLevel());
    }

    private static void make(Stage stage, NewTopic topic) throws Exception {
        stage.admin.createTopics(List.of(topic)).all().get();
    }

    private static AlterConfigOp change(String key, String value, AlterConfigOp.OpType how) {
        return new AlterConfigOp(new ConfigEntry(key, value), how);
    }

    private static TopicDescription description(Stage stage) throws Exception {
        return stage.admin.describeTopics(List.of(stage.topic)).allTopicNames().get()
                .get(stage.topic);
    }

    private static ListOffsetsResult.ListOffsetsResultInfo listed(Stage stage, OffsetSpec spec)
            throws Exception {
        return stage.admin.listOffsets(Map.of(stage.partition(0), spec)).all().get()
                .get(stage.partition(0));
    }

    private static ClassicGroupDescription group(Stage stage) throws Exception {
        return stage.admin.describeClassicGroups(List.of(stage.group)).all().get()
                .get(stage.group);
    }

    private static TransactionDescription transaction(Stage stage, String name)
            throws Exception {
        return stage.admin.describeTransactions(List.of(name)).description(name).get();
    }

    private AdminChecks() { }
}

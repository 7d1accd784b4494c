import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.NotEnoughReplicasException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/** What administrators' tools ask for with the admin client. */
public final class ToolChecks {
    private static final Set<AclOperation> OF_TOPIC = Set.of(AclOperation.READ, AclOperation.WRITE,
            AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS);
    private static final Set<AclOperation> OF_CLUSTER = Set.of(AclOperation.CREATE,
            AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE);

    public static void aclsAreDisabled(Stage stage) {
        AclBinding binding = new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, stage.topic, PatternType.LITERAL),
                new AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW));
        Class<SecurityDisabledException> disabled = SecurityDisabledException.class;
        Checks.refused(disabled, () -> stage.admin.describeAcls(AclBindingFilter.ANY).values().get());
        Checks.refused(disabled, () -> stage.admin.createAcls(List.of(binding)).all().get());
        Checks.refused(disabled,
                () -> stage.admin.deleteAcls(List.of(AclBindingFilter.ANY)).all().get());
    }

    public static void everyOperationIsAuthorized(Stage stage) throws Exception {
        stage.create(1);
        Checks.equal(OF_TOPIC, stage.admin
                .describeTopics(List.of(stage.topic),
                        new DescribeTopicsOptions().includeAuthorizedOperations(true))
                .allTopicNames().get().get(stage.topic).authorizedOperations());
        DescribeClusterResult cluster = stage.admin.describeCluster(
                new DescribeClusterOptions().includeAuthorizedOperations(true)
                        .includeFencedBrokers(true));
        Checks.equal(OF_CLUSTER, cluster.authorizedOperations().get());
        Checks.isTrue(!cluster.nodes().get().iterator().next().isFenced(), "fenced");
    }

    public static void anUnknownGroupIsNotFound(Stage stage) {
        Checks.refused(GroupIdNotFoundException.class, () -> stage.admin
                .describeConsumerGroups(List.of(stage.group),
                        new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true))
                .all().get());
    }

    public static void logDirectoriesHaveSizes(Stage stage) throws Exception {
        stage.create(1);
        try (Producer<String, String> producer = stage.producer()) {
            producer.send(new ProducerRecord<>(stage.topic, "x".repeat(1000))).get();
        }
        Map<String, LogDirDescription> found =
                stage.admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1);
        Checks.equal(1, found.size());
        long size = found.values().iterator().next().replicaInfos()
                .get(new TopicPartition(stage.topic, 0)).size();
        Checks.isTrue(size > 1000 && size < 2000, "size " + size);
    }

    public static void nothingMovesAndNobodyIsLimited(Stage stage) throws Exception {
        Checks.equal(Map.of(), stage.admin.listPartitionReassignments().reassignments().get());
        Checks.equal(Map.of(),
                stage.admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
        Checks.equal(Map.of(), stage.admin.describeUserScramCredentials().all().get());
    }

    public static void resourcesWithSettingsAreListed(Stage stage) throws Exception {
        stage.create(1);
        Collection<ConfigResource> found = stage.admin.listConfigResources().all().get();
        Set<ConfigResource.Type> kinds =
                found.stream().map(ConfigResource::type).collect(Collectors.toSet());
        Checks.equal(Set.of(ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER), kinds);
        Checks.isTrue(found.contains(new ConfigResource(ConfigResource.Type.TOPIC, stage.topic)),
                "listed");
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, stage.group);
        Checks.equal(0, stage.admin.describeConfigs(List.of(group)).all().get().get(group)
                .entries().size());
    }

    public static void oneTierHasNothingRemote(Stage stage) throws Exception {
        stage.create(1);
        TopicPartition place = new TopicPartition(stage.topic, 0);
        Checks.equal(0L, stage.admin.listOffsets(Map.of(place, OffsetSpec.earliestLocal()))
                .partitionResult(place).get().offset());
        Checks.equal(-1L, stage.admin.listOffsets(Map.of(place, OffsetSpec.latestTiered()))
                .partitionResult(place).get().offset());
    }

    public static void aTopicWithACodecTakesEveryOther(Stage stage) throws Exception {
        stage.create(1, "compression.type", "lz4", "local.retention.ms", "-2");
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (Producer<String, String> producer =
                    stage.producer("compression.type=" + codec, "linger.ms=20")) {
                for (int number = 0; number < 20; number++) {
                    producer.send(new ProducerRecord<>(stage.topic, codec + number));
                }
            }
        }
        Checks.equal(100, stage.values("read_committed").size());
    }

    public static void tooFewReplicasRefuseAcksAll(Stage stage) throws Exception {
        stage.create(1, "min.insync.replicas", "2");
        try (Producer<String, String> producer = stage.producer("retries=0")) {
            Checks.refused(NotEnoughReplicasException.class,
                    () -> producer.send(new ProducerRecord<>(stage.topic, "x")).get());
        }
    }
}

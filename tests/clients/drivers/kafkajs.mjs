// kafkajs, with the two codecs that it leaves to others.
import kafkajs from 'kafkajs'
import lz4 from 'lz4js'
import snappy from 'kafkajs-snappy'
import { driver } from './like_kafkajs.mjs'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(lz4.decompress(buffer))
})
const CODECS = { none: 0, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD }

// What kafkajs leaves to others and nobody brought throws when it is made.
function has (name) {
  try {
    return name === 'none' || Boolean(CompressionCodecs[CODECS[name]]())
  } catch {
    return false
  }
}
export const codecs = asked => asked.filter(has)

const client = address => new Kafka({
  brokers: [address],
  connectionTimeout: 2_000,
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 40 }
})

export const lib = {
  beginning: { fromBeginning: true },
  run: { autoCommit: false },
  client,
  admin: address => client(address).admin(),
  producer: (address, { id, idempotent }) => client(address).producer({
    idempotent: Boolean(idempotent || id),
    transactionalId: id,
    maxInFlightRequests: 1,
    transactionTimeout: 30_000
  }),
  consumer: (address, { group, isolation, session, heartbeat }) => client(address).consumer({
    groupId: group,
    readUncommitted: isolation === 'read_uncommitted',
    sessionTimeout: session ?? 6_000,
    heartbeatInterval: heartbeat ?? 300,
    rebalanceTimeout: 6_000,
    maxWaitTimeInMs: 100
  }),
  send: (producer, record, codec) => producer.send({ ...record, acks: -1, compression: CODECS[codec ?? 'none'] }),
  // It takes its epoch at the first transaction only, and would fence nobody before.
  initialise: async producer => { await (await producer.transaction()).abort() },
  onCrash: (consumer, tell) => consumer.on(consumer.events.CRASH, event => {
    if (!event.payload.restart) tell(event.payload.error)
  }),
  assignment: (consumer, topic) => {
    let mine = []
    consumer.on(consumer.events.GROUP_JOIN, event => { mine = event.payload.memberAssignment[topic] ?? [] })
    consumer.on(consumer.events.REBALANCING, () => { mine = [] })
    return () => mine
  },
  more: async (admin, topic, group) => {
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    const config = async () => {
      const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }], includeSynonyms: false })
      return resources[0].configEntries[0].configValue
    }
    const told = { config: await config() }
    await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '654321' }] }] })
    told.altered = await config()
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    told.brokers = (await admin.describeCluster()).brokers.length
    await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '0' }] })
    return told
  }
}

export const { write, read, sender, writer, member, administer } = driver(lib)

// @confluentinc/kafka-javascript: librdkafka, by the API that it took over from kafkajs.
import confluent from '@confluentinc/kafka-javascript'
import { driver } from './like_kafkajs.mjs'

const { Kafka, logLevel } = confluent.KafkaJS
const STATES = { 1: 'PreparingRebalance', 2: 'CompletingRebalance', 3: 'Stable', 4: 'Dead', 5: 'Empty' }

const client = address => new Kafka({ kafkaJS: { brokers: [address], logLevel: logLevel.NOTHING } })

// librdkafka has a codec where it was built with its library.
export const codecs = asked => asked.filter(name => name === 'none' || confluent.features.includes(name))

export const lib = {
  beginning: {},
  run: {},
  client,
  admin: address => {
    const admin = client(address).admin()
    const describeGroups = admin.describeGroups.bind(admin)
    admin.describeGroups = async groups => {
      const found = await describeGroups(groups)
      return { groups: found.groups.map(each => ({ ...each, state: STATES[each.state] })) }
    }
    return admin
  },
  producer: (address, { id, idempotent, codec }) => client(address).producer({
    kafkaJS: {
      acks: -1,
      compression: codec ?? 'none',
      idempotent: Boolean(idempotent || id),
      ...(id ? { transactionalId: id, transactionTimeout: 30_000 } : {})
    },
    'linger.ms': 0,
    // Its group coordinator is never found again after a re-bootstrap (librdkafka issue 5511).
    'metadata.recovery.strategy': 'none',
    'reconnect.backoff.max.ms': 500
  }),
  consumer: (address, { group, isolation, session, heartbeat }) => client(address).consumer({
    kafkaJS: {
      groupId: group,
      autoCommit: false,
      fromBeginning: true,
      readUncommitted: isolation === 'read_uncommitted',
      sessionTimeout: session ?? 6_000,
      heartbeatInterval: heartbeat ?? 300,
      maxWaitTimeInMs: 100
    },
    'reconnect.backoff.max.ms': 500
  }),
  send: (producer, record) => producer.send(record),
  initialise: async () => {},
  onCrash: () => {},
  assignment: (consumer, topic) => () => consumer.assignment().filter(each => each.topic === topic).map(each => each.partition)
}

const made = driver(lib)
export const { write, read, sender, writer, member, administer } = made
export const fenced = all => all.some(each => each.code === -144 || each.code === 47 || each.code === 90)

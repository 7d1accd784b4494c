// @platformatic/kafka: streams of messages, and nothing older than flexible versions.
import { Admin, Consumer, Producer, compressionsAlgorithms } from '@platformatic/kafka'

export const codecs = asked => asked.filter(name => compressionsAlgorithms[name].available)

const bytes = text => (text === null ? undefined : Buffer.from(text, 'base64'))
const text = value => (value === null || value === undefined ? null : value.toString('base64'))

const options = (address, more) => ({
  clientId: 'platformatic',
  bootstrapBrokers: [address],
  connectTimeout: 2_000,
  retries: 60,
  retryDelay: 100,
  ...more
})

export const producer = (address, more) => new Producer(options(address, more))
// It begins with producer id 0 and epoch 0 unless told: every later producer of an id would be refused.
export const transactional = (address, id) =>
  producer(address, { transactionalId: id, idempotent: true, producerId: -1n, producerEpoch: -1 })

export const consumer = (address, group, more) =>
  new Consumer(options(address, { groupId: group, sessionTimeout: 6_000, rebalanceTimeout: 6_000, heartbeatInterval: 300, maxWaitTime: 100, ...more }))

function message (topic, record) {
  const headers = new Map(record.headers.map(([name, value]) => [Buffer.from(name), bytes(value)]))
  const made = { topic, partition: record.partition, key: bytes(record.key), value: bytes(record.value), headers }
  return record.timestamp === null ? made : { ...made, timestamp: BigInt(record.timestamp) }
}

const seen = each => ({
  partition: each.partition,
  offset: Number(each.offset),
  key: text(each.key),
  value: text(each.value),
  headers: [...each.headers].map(([name, value]) => [name.toString(), text(value)]),
  timestamp: Number(each.timestamp)
})

export async function write (address, topic, records, codec, idempotent) {
  const made = producer(address, { idempotent })
  try {
    await made.send({ messages: records.map(each => message(topic, each)), compression: codec, acks: -1 })
  } finally {
    await made.close()
  }
}

export async function read (address, topic, isolation, group, last, partitions) {
  const made = consumer(address, group)
  try {
    const stream = await made.consume({
      topics: [topic],
      mode: 'earliest',
      autocommit: false,
      isolationLevel: isolation === 'read_committed' ? 1 : 0
    })
    const found = []
    const left = new Set(Array(partitions).keys())
    for await (const each of stream) {
      if (each.value?.toString() === last) left.delete(each.partition)
      else if (left.has(each.partition)) found.push(seen(each))
      if (left.size === 0) break
    }
    return found
  } finally {
    await made.close(true)
  }
}

export async function sender (address) {
  const made = producer(address, { idempotent: true })
  return {
    send: async (topic, values) => {
      await made.send({ messages: values.map(value => ({ topic, partition: 0, value: Buffer.from(value) })), acks: -1 })
    },
    close: () => made.close(true)
  }
}

export async function writer (address, id) {
  const made = transactional(address, id)
  // It takes its epoch at the first transaction only, and would fence nobody before.
  await (await made.beginTransaction()).cancel()
  let open = null
  return {
    begin: async () => { open = await made.beginTransaction() },
    send: async (topic, value) => {
      await open.send({ messages: [{ topic, partition: 0, value: bytes(value) }], acks: -1 })
    },
    commit: () => open.commit(),
    abort: () => open.abort(),
    close: () => made.close(true)
  }
}

export async function member (address, group, topic, session, heartbeat) {
  const made = consumer(address, group, session ? { sessionTimeout: session, heartbeatInterval: heartbeat } : {})
  const stream = await made.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false, isolationLevel: 1 })
  let buffer = []
  stream.on('data', each => buffer.push(seen(each)))
  stream.on('error', error => process.stderr.write(`stream: ${error.stack}\n`))
  return {
    poll: () => {
      const found = buffer
      buffer = []
      return found
    },
    assignment: () => (made.assignments ?? []).flatMap(each => (each.topic === topic ? each.partitions : [])),
    commit: offsets => made.commit({
      offsets: Object.entries(offsets).map(([partition, offset]) => ({ topic, partition: Number(partition), offset: BigInt(offset), leaderEpoch: -1 }))
    }),
    committed: async partition => {
      const found = await made.listCommittedOffsets({ topics: [{ topic, partitions: [partition] }] })
      const offset = Number(found.get(topic)[partition])
      return offset < 0 ? null : offset
    },
    close: () => made.close(true)
  }
}

export async function administer (address, topic, group) {
  const admin = new Admin(options(address))
  try {
    const told = {}
    const [created] = await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1, configs: [{ name: 'retention.ms', value: '123456' }] })
    told.created = created.name === topic
    told.listed = (await admin.listTopics()).includes(topic)
    const resource = { resourceType: 2, resourceName: topic }
    const config = async () => {
      const [found] = await admin.describeConfigs({ resources: [{ ...resource, configurationKeys: ['retention.ms'] }] })
      return found.configs[0].value
    }
    told.config = await config()
    await admin.incrementalAlterConfigs({ resources: [{ ...resource, configs: [{ name: 'retention.ms', configOperation: 0, value: '654321' }] }] })
    told.altered = await config()
    await admin.createPartitions({ topics: [{ name: topic, count: 3, assignments: [{ brokerIds: [1] }] }] })
    const metadata = await admin.metadata({ topics: [topic], forceUpdate: true })
    told.partitions = metadata.topics.get(topic).partitionsCount
    told.brokers = metadata.brokers.size
    await write(address, topic, [0, 1, 2].map(() => ({ key: null, value: 'YQ==', partition: 0, headers: [], timestamp: null })), 'none', false)
    const [deleted] = await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset: 2n }] }] })
    const [listed] = await admin.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: 0, timestamp: -1n }] }] })
    told.offsets = [String(deleted.partitions[0].lowWatermark), String(listed.partitions[0].offset)]
    const made = await member(address, group, topic)
    await made.commit({ 0: 3 })
    told.grouped = (await admin.listGroups()).has(group)
    const state = async () => (await admin.describeGroups({ groups: [group] })).get(group).state
    told.living = await state()
    await made.close()
    told.left = await state()
    await admin.alterConsumerGroupOffsets({ groupId: group, topics: [{ name: topic, partitionOffsets: [{ partition: 1, offset: 0n }] }] })
    const [offsets] = await admin.listConsumerGroupOffsets({ groups: [group] })
    told.committed = String(offsets.topics[0].partitions.find(each => each.partitionIndex === 0).committedOffset)
    await admin.deleteConsumerGroupOffsets({ groupId: group, topics: [{ name: topic, partitionIndexes: [1] }] })
    await admin.deleteGroups({ groups: [group] })
    told.group_gone = !(await admin.listGroups()).has(group)
    await admin.deleteTopics({ topics: [topic] })
    told.topic_gone = !(await admin.listTopics()).includes(topic)
    return told
  } finally {
    await admin.close()
  }
}

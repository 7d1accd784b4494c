// What kafkajs and @confluentinc/kafka-javascript have in common: the second took over the first's API.
// `lib` says where they differ.

const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const text = value => (value === null || value === undefined ? null : Buffer.from(value).toString('base64'))

function message (record) {
  const headers = {}
  for (const [name, value] of record.headers) headers[name] = bytes(value)
  const made = { key: bytes(record.key), value: bytes(record.value), partition: record.partition, headers }
  return record.timestamp === null ? made : { ...made, timestamp: String(record.timestamp) }
}

function seen (partition, each) {
  return {
    partition,
    offset: Number(each.offset),
    key: text(each.key),
    value: text(each.value),
    headers: Object.entries(each.headers ?? {}).map(([name, value]) => [name, text(value)]),
    timestamp: Number(each.timestamp)
  }
}

export function driver (lib) {
  async function write (address, topic, records, codec, idempotent) {
    const producer = lib.producer(address, { codec, idempotent })
    await producer.connect()
    try {
      await lib.send(producer, { topic, messages: records.map(message) }, codec)
    } finally {
      await producer.disconnect()
    }
  }

  // Reads from the beginning until each of so many partitions has shown this last value.
  async function read (address, topic, isolation, group, last, partitions) {
    const consumer = lib.consumer(address, { group, isolation })
    await consumer.connect()
    try {
      await consumer.subscribe({ topics: [topic], ...lib.beginning })
      const found = []
      const left = new Set(Array(partitions).keys())
      await new Promise((resolve, reject) => {
        lib.onCrash(consumer, reject)
        consumer.run({
          ...lib.run,
          eachMessage: async ({ partition, message: each }) => {
            if (each.value?.toString() === last) left.delete(partition)
            else if (left.has(partition)) found.push(seen(partition, each))
            if (left.size === 0) resolve()
          }
        }).catch(reject)
      })
      return found
    } finally {
      await consumer.disconnect()
    }
  }

  async function sender (address) {
    const producer = lib.producer(address, { idempotent: true })
    await producer.connect()
    return {
      send: (topic, values) => lib.send(producer, { topic, messages: values.map(value => ({ value, partition: 0 })) }),
      close: () => producer.disconnect()
    }
  }

  async function writer (address, id) {
    const producer = lib.producer(address, { id })
    await producer.connect()
    await lib.initialise(producer)
    let open = null
    return {
      begin: async () => { open = await producer.transaction() },
      send: (topic, value) => lib.send(open, { topic, messages: [{ value: bytes(value), partition: 0 }] }),
      commit: () => open.commit(),
      abort: () => open.abort(),
      close: () => producer.disconnect()
    }
  }

  async function member (address, group, topic, session, heartbeat) {
    const consumer = lib.consumer(address, { group, isolation: 'read_committed', session, heartbeat })
    const assignment = lib.assignment(consumer, topic)
    const admin = lib.admin(address)
    await admin.connect()
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], ...lib.beginning })
    let buffer = []
    await consumer.run({
      ...lib.run,
      eachMessage: async ({ partition, message: each }) => { buffer.push(seen(partition, each)) }
    })
    return {
      poll: () => {
        const found = buffer
        buffer = []
        return found
      },
      assignment,
      commit: offsets => consumer.commitOffsets(
        Object.entries(offsets).map(([partition, offset]) => ({ topic, partition: Number(partition), offset: String(offset) }))
      ),
      committed: async partition => {
        const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
        const offset = Number(found.partitions.find(each => each.partition === partition)?.offset ?? -1)
        return offset < 0 ? null : offset
      },
      seek: (partition, offset) => { consumer.seek({ topic, partition, offset: String(offset) }) },
      close: async () => {
        await consumer.disconnect()
        await admin.disconnect()
      }
    }
  }

  // Every administrative call that the client has, on a topic and a group; what each was told.
  async function administer (address, topic, group) {
    const admin = lib.admin(address)
    await admin.connect()
    try {
      const told = {}
      const entries = [{ name: 'retention.ms', value: '123456' }]
      told.created = await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries: entries }] })
      told.listed = (await admin.listTopics()).includes(topic)
      if (lib.more) Object.assign(told, await lib.more(admin, topic, group))
      const metadata = await admin.fetchTopicMetadata({ topics: [topic] })
      told.partitions = (metadata.topics ?? metadata)[0].partitions.length
      await write(address, topic, [0, 1, 2].map(() => ({ key: null, value: 'YQ==', partition: 0, headers: [], timestamp: null })), 'none', false)
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '2' }] })
      const [place] = (await admin.fetchTopicOffsets(topic)).filter(each => each.partition === 0)
      told.offsets = [place.low, place.high]
      const consumer = lib.consumer(address, { group, isolation: 'read_committed' })
      await consumer.connect()
      await consumer.subscribe({ topics: [topic], ...lib.beginning })
      await new Promise((resolve, reject) => consumer.run({ ...lib.run, eachMessage: async () => resolve() }).catch(reject))
      await consumer.commitOffsets([{ topic, partition: 0, offset: '3' }])
      told.grouped = (await admin.listGroups()).groups.some(each => each.groupId === group)
      const state = async () => String((await admin.describeGroups([group])).groups[0].state)
      told.living = await state()
      await consumer.disconnect()
      told.left = await state()
      const fetched = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      told.committed = fetched[0].partitions.find(each => each.partition === 0).offset
      await admin.deleteGroups([group])
      told.group_gone = !(await admin.listGroups()).groups.some(each => each.groupId === group)
      await admin.deleteTopics({ topics: [topic] })
      told.topic_gone = !(await admin.listTopics()).includes(topic)
      return told
    } finally {
      await admin.disconnect()
    }
  }

  return { write, read, sender, writer, member, administer }
}

// Read as a member of a group, and remember how far: consume.mjs ADDRESS TOPIC GROUP COUNT
import { Consumer, stringDeserializers } from '@platformatic/kafka'

const [address, topic, group, count] = process.argv.slice(2)
const consumer = new Consumer({
  clientId: 'consume',
  bootstrapBrokers: [address],
  groupId: group,
  deserializers: stringDeserializers
})
const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false })
let seen = 0
for await (const message of stream) {
  console.log(message.value)
  await message.commit()
  if (++seen === Number(count)) break
}
await consumer.close(true)

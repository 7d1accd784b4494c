// Write greetings: produce.mjs ADDRESS TOPIC COUNT
import { Producer, stringSerializers } from '@platformatic/kafka'

const [address, topic, count] = process.argv.slice(2)
const producer = new Producer({
  clientId: 'produce',
  bootstrapBrokers: [address],
  serializers: stringSerializers,
  idempotent: true,
  autocreateTopics: true
})
const messages = Array.from({ length: Number(count) }, (_, number) => ({ topic, key: `${number}`, value: `hello ${number}` }))
await producer.send({ messages })
await producer.close()
console.log(`wrote ${count}`)

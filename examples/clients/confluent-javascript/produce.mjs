// Write greetings: produce.mjs ADDRESS TOPIC COUNT
import confluent from '@confluentinc/kafka-javascript'

const { Kafka, logLevel } = confluent.KafkaJS
const [address, topic, count] = process.argv.slice(2)
const kafka = new Kafka({ kafkaJS: { brokers: [address], logLevel: logLevel.ERROR } })
const producer = kafka.producer({ kafkaJS: { idempotent: true, allowAutoTopicCreation: true } })
await producer.connect()
const messages = Array.from({ length: Number(count) }, (_, number) => ({ key: `${number}`, value: `hello ${number}` }))
await producer.send({ topic, messages })
await producer.disconnect()
console.log(`wrote ${count}`)

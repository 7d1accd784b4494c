// A transactional producer and an exactly-once copier of franz-go, for tests/clients/test_franz_go.py:
//
//	franz ADDRESS INPUT OUTPUT newest|v1
//
// Every third transaction is aborted. franz-go sends produce, fetch, group and other requests on
// connections of their own; idle ones are closed and opened again while a transaction is open.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	transactions = 30
	records      = 5
	idle         = time.Second
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	address, input, output := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options := []kgo.Opt{kgo.SeedBrokers(address), kgo.ConnIdleTimeout(idle)}
	if os.Args[4] == "v1" { // Kafka 3.7 is the last without transaction version 2
		options = append(options, kgo.MaxVersions(kversion.V3_7_0()))
	}
	produce(ctx, input, options)
	copyAll(ctx, input, output, options)
}

func produce(ctx context.Context, topic string, options []kgo.Opt) {
	client, err := kgo.NewClient(append(options, kgo.DefaultProduceTopic(topic),
		kgo.TransactionalID(topic))...)
	must(err)
	defer client.Close()
	for number := 0; number < transactions; number++ {
		must(client.BeginTransaction())
		commit := kgo.TransactionEndTry(number%3 != 2)
		for part := 0; part < records; part++ {
			value := fmt.Sprintf("%d-%d-%v", number, part, commit)
			must(client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
			if number%10 == 9 && part == 2 {
				time.Sleep(3 * idle)
			}
		}
		must(client.EndTransaction(ctx, commit))
	}
}

func copyAll(ctx context.Context, input, output string, options []kgo.Opt) {
	session, err := kgo.NewGroupTransactSession(append(options, kgo.DefaultProduceTopic(output),
		kgo.TransactionalID(output), kgo.ConsumerGroup(output), kgo.ConsumeTopics(input),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.FetchMaxWait(200*time.Millisecond))...)
	must(err)
	defer session.Close()
	for copied := 0; copied < transactions/3*2*records; {
		fetched := session.PollRecords(ctx, 17)
		must(fetched.Err())
		must(session.Begin())
		failed := kgo.AbortingFirstErrPromise(session.Client())
		fetched.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, kgo.SliceRecord(record.Value), failed.Promise())
		})
		committed, err := session.End(ctx, failed.Err() == nil)
		must(err)
		if committed {
			copied += fetched.NumRecords()
		}
	}
}

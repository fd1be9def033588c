// A consumer in another language: what it does with a message, the message says.
//
//	foreign URL STREAM DURABLE
//
// `ok` is acknowledged, `fail` is given back, `term` is refused for good, `die` ends the process. It ends by itself when
// nothing is left.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatal("usage: foreign URL STREAM DURABLE")
	}
	connection, err := nats.Connect(os.Args[1], nats.Timeout(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	stream, err := connection.JetStream()
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := stream.PullSubscribe(
		"", os.Args[3], nats.BindStream(os.Args[2]),
		nats.AckExplicit(), nats.MaxDeliver(3), nats.AckWait(time.Second),
	)
	if err != nil {
		log.Fatal(err)
	}
	for {
		messages, err := consumer.Fetch(1, nats.MaxWait(2*time.Second))
		if err == nats.ErrTimeout {
			info, err := consumer.ConsumerInfo()
			if err != nil {
				log.Fatal(err)
			}
			if info.NumPending == 0 && info.NumAckPending == 0 {
				return
			}
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		for _, message := range messages {
			if err := handle(message); err != nil {
				log.Fatal(err)
			}
		}
	}
}

func handle(message *nats.Msg) error {
	switch kind := strings.Fields(string(message.Data))[0]; kind {
	case "ok":
		fmt.Println(string(message.Data))
		return message.AckSync()
	case "fail":
		return message.Nak()
	case "term":
		return message.Respond([]byte("+TERM this will never work"))
	case "die":
		os.Exit(1)
		return nil
	default:
		return fmt.Errorf("a message of kind %q", kind)
	}
}

// RocketMQ's Go client, told by lines of JSON what to do (see client_process.py).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type request struct {
	Do          string            `json:"do"`
	Name        string            `json:"name"`
	Endpoint    string            `json:"endpoint"`
	TLS         bool              `json:"tls"`
	AccessKey   string            `json:"access_key"`
	SecretKey   string            `json:"secret_key"`
	Topics      []string          `json:"topics"`
	Check       string            `json:"check"`
	Topic       string            `json:"topic"`
	Body        string            `json:"body"`
	Tag         string            `json:"tag"`
	SQL         string            `json:"sql"`
	Keys        []string          `json:"keys"`
	Properties  map[string]string `json:"properties"`
	Group       string            `json:"group"`
	DelayMs     int64             `json:"delay_ms"`
	End         string            `json:"end"`
	Handle      string            `json:"handle"`
	Max         int32             `json:"max"`
	InvisibleMs int64             `json:"invisible_ms"`
	AwaitMs     int64             `json:"await_ms"`
	AfterMs     int64             `json:"after_ms"`
	Fails       int               `json:"fails"`
	Failing     string            `json:"failing"`
	Holds       bool              `json:"holds"`
	Lite        string            `json:"lite"`
	First       bool              `json:"first"`
	Priority    *int32            `json:"priority"`
	Namespace   string            `json:"namespace"`
}

type fields map[string]any

var (
	out        = os.Stdout
	saying     sync.Mutex
	producers  = map[string]rocketmq.Producer{}
	simples    = map[string]rocketmq.SimpleConsumer{}
	pushes     = map[string]rocketmq.PushConsumer{}
	lites      = map[string]rocketmq.LitePushConsumer{}
	messages   = map[string]*rocketmq.MessageView{}
	background = context.Background()
)

func say(kind string, what fields) {
	line, _ := json.Marshal(what)
	saying.Lock()
	defer saying.Unlock()
	fmt.Fprintf(out, "%s %s\n", kind, line)
}

func view(message *rocketmq.MessageView) fields {
	return fields{
		"id": message.GetMessageId(), "topic": message.GetTopic(), "body": string(message.GetBody()),
		"tag": message.GetTag(), "keys": message.GetKeys(), "properties": message.GetProperties(),
		"group": message.GetMessageGroup(), "attempt": message.GetDeliveryAttempt(),
		"lite": message.GetLiteTopic(),
	}
}

func with(what fields, name string, value any) fields {
	what[name] = value
	return what
}

func config(given request) *rocketmq.Config {
	rocketmq.EnableSsl = given.TLS
	return &rocketmq.Config{
		Endpoint: given.Endpoint, ConsumerGroup: given.Group, NameSpace: given.Namespace,
		Credentials: &credentials.SessionCredentials{AccessKey: given.AccessKey, AccessSecret: given.SecretKey},
	}
}

func filters(given request) map[string]*rocketmq.FilterExpression {
	filter := rocketmq.SUB_ALL
	if given.SQL != "" {
		filter = rocketmq.NewFilterExpressionWithType(given.SQL, rocketmq.SQL92)
	} else if given.Tag != "" {
		filter = rocketmq.NewFilterExpression(given.Tag)
	}
	return map[string]*rocketmq.FilterExpression{given.Topic: filter}
}

func startProducer(given request) error {
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(given.Topics...)}
	if given.Check != "" {
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{
			Check: func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
				say("*", with(view(message), "event", "check"))
				if given.Check == "commit" {
					return rocketmq.COMMIT
				}
				return rocketmq.ROLLBACK
			},
		}))
	}
	producer, err := rocketmq.NewProducer(config(given), options...)
	if err != nil {
		return err
	}
	producers[given.Name] = producer
	return producer.Start()
}

func startSimple(given request) error {
	consumer, err := rocketmq.NewSimpleConsumer(config(given),
		rocketmq.WithSimpleAwaitDuration(time.Duration(given.AwaitMs)*time.Millisecond),
		rocketmq.WithSimpleSubscriptionExpressions(filters(given)))
	if err != nil {
		return err
	}
	simples[given.Name] = consumer
	return consumer.Start()
}

func listener(given request) rocketmq.PushConsumerOption {
	seen, locked := map[string]int{}, sync.Mutex{}
	consume := func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		locked.Lock()
		seen[message.GetMessageId()]++
		times := seen[message.GetMessageId()]
		locked.Unlock()
		say("*", with(view(message), "event", "message"))
		if workMs, there := message.GetProperties()["work_ms"]; there {
			work, _ := time.ParseDuration(workMs + "ms")
			time.Sleep(work)
			say("*", with(view(message), "event", "worked"))
		}
		if given.Holds {
			select {}
		}
		concerned := given.Failing == "" || given.Failing == string(message.GetBody())
		if concerned && times <= given.Fails {
			return rocketmq.FAILURE
		}
		return rocketmq.SUCCESS
	}
	return rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: consume})
}

func startLitePush(given request) error {
	consumer, err := rocketmq.NewLitePushConsumer(config(given),
		rocketmq.NewLitePushConsumerConfig(given.Topic, 30*time.Second),
		rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushConsumptionThreadCount(20),
		rocketmq.WithPushMaxCacheMessageCount(1024), listener(given))
	if err != nil {
		return err
	}
	lites[given.Name] = consumer
	return consumer.Start()
}

func startPush(given request) error {
	consumer, err := rocketmq.NewPushConsumer(config(given),
		rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushSubscriptionExpressions(filters(given)),
		rocketmq.WithPushConsumptionThreadCount(20),
		rocketmq.WithPushMaxCacheMessageCount(1024), listener(given))
	if err != nil {
		return err
	}
	pushes[given.Name] = consumer
	return consumer.Start()
}

func send(given request) (fields, error) {
	message := &rocketmq.Message{Topic: given.Topic, Body: []byte(given.Body)}
	if given.Tag != "" {
		message.SetTag(given.Tag)
	}
	if given.Keys != nil {
		message.SetKeys(given.Keys...)
	}
	for key, value := range given.Properties {
		message.AddProperty(key, value)
	}
	if given.Group != "" {
		message.SetMessageGroup(given.Group)
	}
	if given.Lite != "" {
		message.SetLiteTopic(given.Lite)
	}
	if given.Priority != nil {
		if err := message.SetPriority(*given.Priority); err != nil {
			return nil, err
		}
	}
	if given.DelayMs != 0 {
		message.SetDelayTimestamp(time.Now().Add(time.Duration(given.DelayMs) * time.Millisecond))
	}
	producer := producers[given.Name]
	var receipts []*rocketmq.SendReceipt
	var err error
	if given.End == "" {
		receipts, err = producer.Send(background, message)
	} else {
		transaction := producer.BeginTransaction()
		receipts, err = producer.SendWithTransaction(background, message, transaction)
		if err == nil && given.End == "commit" {
			err = transaction.Commit()
		} else if err == nil && given.End == "rollback" {
			err = transaction.RollBack()
		}
	}
	if err != nil {
		return nil, err
	}
	return fields{"id": receipts[0].MessageID, "recall": receipts[0].RecallHandle}, nil
}

func receive(given request) (fields, error) {
	found := []fields{}
	received, err := simples[given.Name].Receive(background, given.Max, time.Duration(given.InvisibleMs)*time.Millisecond)
	// That there is nothing is an error to it.
	if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
		return nil, err
	}
	for _, message := range received {
		handle := fmt.Sprintf("m%d", len(messages))
		messages[handle] = message
		found = append(found, with(view(message), "handle", handle))
	}
	return fields{"messages": found}, nil
}

func stop(name string) error {
	if producer, there := producers[name]; there {
		return producer.GracefulStop()
	}
	if consumer, there := simples[name]; there {
		return consumer.GracefulStop()
	}
	return pushes[name].GracefulStop()
}

func done(given request) (fields, error) {
	switch given.Do {
	case "producer":
		return fields{}, startProducer(given)
	case "simple":
		return fields{}, startSimple(given)
	case "push":
		return fields{}, startPush(given)
	case "lite_push":
		return fields{}, startLitePush(given)
	case "subscribe":
		if given.First {
			return fields{"unsupported": "a place to begin"}, nil
		}
		return fields{}, lites[given.Name].SubscribeLite(given.Lite)
	case "unsubscribe":
		return fields{}, lites[given.Name].UnSubscribeLite(given.Lite)
	case "send":
		return send(given)
	case "recall":
		id, err := producers[given.Name].Recall(background, given.Topic, given.Handle)
		return fields{"id": id}, err
	case "receive":
		return receive(given)
	case "ack":
		return fields{}, simples[given.Name].Ack(background, messages[given.Handle])
	case "change":
		return fields{}, simples[given.Name].ChangeInvisibleDuration(
			messages[given.Handle], time.Duration(given.AfterMs)*time.Millisecond)
	case "stop":
		return fields{}, stop(given.Name)
	}
	return fields{"unsupported": given.Do}, nil
}

func main() {
	os.Stdout = os.Stderr
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var given request
		answer, err := fields{}, json.Unmarshal(lines.Bytes(), &given)
		if err == nil {
			answer, err = done(given)
		}
		if err != nil {
			answer = fields{"error": err.Error()}
		}
		say(">", answer)
	}
}

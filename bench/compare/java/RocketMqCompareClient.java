import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Semaphore;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.store.ha.DefaultHAService;

/** RocketMQ's Java client, for `make compare`. */
public final class RocketMqCompareClient extends CompareClient {
    private static final int BATCH_MESSAGES = 100;
    private static final int IN_FLIGHT_MAX = 256;
    private static final int BATCHES_IN_FLIGHT_MAX = 16;
    private static final int PULLED = 1024;
    private static final int TIMEOUT_MS = 30_000;
    private static int clients = 0;
    private String address;
    private DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        new RocketMqCompareClient().serve();
    }

    /** For the broker: it has no copies, so nobody is let in where they would connect: on every address. */
    public static final class NoCopies extends DefaultHAService {
        @Override
        public void start() {
            // Nothing listens.
        }

        @Override
        public void shutdown() {
            // Nothing was started.
        }
    }

    @Override
    void connect(String address) throws Exception {
        this.address = address;
        producer = new DefaultMQProducer("senders");
        producer.setNamesrvAddr(address);
        producer.setInstanceName("client" + clients++);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
    }

    @Override
    void makeTopics(Map<String, Integer> queues) throws Exception {
        for (Map.Entry<String, Integer> each : queues.entrySet()) {
            // The nameserver may not know of a broker that has just started.
            until(() -> {
                try {
                    producer.createTopic("TBW102", each.getKey(), each.getValue(), Map.of());
                    return producer.fetchPublishMessageQueues(each.getKey()).size() == each.getValue();
                } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
                    return false;
                }
            }, TIMEOUT_MS);
        }
    }

    private static void check(SendResult sent) {
        if (sent.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(sent.toString());
        }
    }

    @Override
    void send(String topic, byte[] body) throws Exception {
        check(producer.send(new Message(topic, body)));
    }

    /** Frees a place when a send is answered, and keeps the first failure. */
    private static final class Answered implements SendCallback {
        private final Semaphore room;
        private volatile Throwable failure;

        Answered(int places) {
            room = new Semaphore(places);
        }

        @Override
        public void onSuccess(SendResult sent) {
            if (sent.getSendStatus() != SendStatus.SEND_OK) {
                failure = new IllegalStateException(sent.toString());
            }
            room.release();
        }

        @Override
        public void onException(Throwable thrown) {
            failure = thrown;
            room.release();
        }

        void take(int places) throws Exception {
            room.acquire(places);
            if (failure != null) {
                throw new IllegalStateException(failure);
            }
        }
    }

    @Override
    Work produceEach(String topic, int bytes, double seconds) throws Exception {
        Answered answered = new Answered(IN_FLIGHT_MAX);
        byte[] body = new byte[bytes];
        long sent = 0;
        long began = System.nanoTime();
        while (System.nanoTime() - began < seconds * 1e9) {
            answered.take(1);
            producer.send(new Message(topic, body), answered);
            sent++;
        }
        answered.take(IN_FLIGHT_MAX);
        return new Work(sent, began);
    }

    @Override
    Work produceLists(String topic, int bytes, double seconds) throws Exception {
        Answered answered = new Answered(BATCHES_IN_FLIGHT_MAX);
        byte[] body = new byte[bytes];
        long sent = 0;
        long began = System.nanoTime();
        while (System.nanoTime() - began < seconds * 1e9) {
            List<Message> batch = new ArrayList<>();
            for (int count = 0; count < BATCH_MESSAGES; count++) {
                batch.add(new Message(topic, body));
            }
            answered.take(1);
            producer.send(batch, answered);
            sent += BATCH_MESSAGES;
        }
        answered.take(BATCHES_IN_FLIGHT_MAX);
        return new Work(sent, began);
    }

    @Override
    Work consumeLists(String topic, long stored, double seconds) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("read-" + UUID.randomUUID());
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName("client" + clients++);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(PULLED);
        consumer.start();
        try {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
            long messages = 0;
            long left = 0;
            long bytes = 0;
            long began = System.nanoTime();
            while (System.nanoTime() - began < seconds * 1e9) {
                if (left <= 0) {
                    for (MessageQueue queue : queues) {
                        consumer.seek(queue, 0);
                    }
                    left = stored;
                }
                List<MessageExt> found = consumer.poll(1000);
                for (MessageExt each : found) {
                    bytes += each.getBody().length;
                }
                messages += found.size();
                left -= found.size();
            }
            Work done = new Work(messages, began);
            if (bytes < messages) {
                throw new IllegalStateException("empty bodies");
            }
            return done;
        } finally {
            consumer.shutdown();
        }
    }

    private DefaultMQPushConsumer pushed(String topic, int list, Consumer<List<MessageExt>> handle) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("push-" + UUID.randomUUID());
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName("client" + clients++);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(list);
        consumer.setPullBatchSize(PULLED);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            handle.accept(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        // It tells the broker of its share by a heartbeat. Where that meets another of its own, which it does by chance
        // in its first second, the broker refuses its pulls until the next one, 30 s later: so it is told again.
        MQClientInstance inside = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory();
        RebalanceImpl shares = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
        until(() -> {
            inside.sendHeartbeatToAllBrokerWithLock();
            inside.rebalanceImmediately();
            return shares.getProcessQueueTable().keySet().stream().anyMatch(each -> each.getTopic().equals(topic));
        }, TIMEOUT_MS);
        until(inside::sendHeartbeatToAllBrokerWithLock, TIMEOUT_MS);
        return consumer;
    }

    @Override
    Work push(String topic, long stored, double seconds, int list) throws Exception {
        Arrivals arrivals = new Arrivals(stored, seconds);
        DefaultMQPushConsumer consumer = pushed(topic, list, messages -> arrivals.add(messages.size()));
        try {
            return arrivals.await();
        } finally {
            consumer.shutdown();
        }
    }

    @Override
    AutoCloseable listen(String topic, Consumer<byte[]> note) throws Exception {
        DefaultMQPushConsumer consumer =
            pushed(topic, 1, messages -> messages.forEach(each -> note.accept(each.getBody())));
        return consumer::shutdown;
    }
}

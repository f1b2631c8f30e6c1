import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageServiceImpl;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageUtil;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.UpdateConsumerOffsetRequestHeader;
import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * A nameserver, a broker and clients in one process, told by lines of JSON what to do.
 *
 * Arguments: the broker's properties file and the nameserver's port. It ends when its input does.
 * Answers are lines that begin with "> "; whatever else is printed is RocketMQ's.
 */
public class RocketMq {
    private static final long TIMEOUT_MS = 30_000;
    private static final long QUIET_MS = 7_000;
    private static String names;
    private static BrokerController broker;
    private static PrintStream out;
    private static int clients = 0;
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();
    private static final Map<String, Integer> CHECKS = new ConcurrentHashMap<>();
    private static TransactionMQProducer transactional;
    private static long halfEnd = -1;
    private static long halfEndSince;

    /** What a broker runs for copies would listen on every address; it has none. */
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

    public static void main(String[] args) throws Exception {
        out = System.out;
        System.setOut(System.err);
        int port = Integer.parseInt(args[1]);
        names = "127.0.0.1:" + port;
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        server.setBindAddress("127.0.0.1");
        NamesrvController nameserver =
            new NamesrvController(new NamesrvConfig(), server, new NettyClientConfig());
        if (!nameserver.initialize()) {
            System.exit(3);
        }
        nameserver.start();
        broker = BrokerStartup.start(BrokerStartup.createBrokerController(new String[] {"-c", args[0]}));
        // The clients ask at once.
        broker.registerBrokerAll(true, false, true);
        say(new JSONObject().fluentPut("ready", true));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject request = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            try {
                answer.put("result", answer(request));
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer.put("error", failure.toString());
            }
            say(answer);
        }
        for (DefaultMQProducer producer : PRODUCERS.values()) {
            producer.shutdown();
        }
        if (transactional != null) {
            transactional.shutdown();
        }
        // The broker's shutdown hook closes the store.
        System.exit(0);
    }

    private static void say(JSONObject what) {
        out.println("> " + what.toJSONString());
        out.flush();
    }

    private static Object answer(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "topic": return topic(request);
            case "delete": return delete(request);
            case "send": return send(request);
            case "batch": return batch(request);
            case "transactions": return transactions(request);
            case "checks": return new HashMap<>(CHECKS);
            case "quiet": return quiet();
            case "read": return read(request);
            case "commit": return commit(request);
            case "pop": return pop(request);
            case "ends": return ends(request);
            default: throw new IllegalArgumentException(request.getString("do"));
        }
    }

    private static Object topic(JSONObject request) {
        int queues = request.getIntValue("queues");
        Map<String, String> attributes = new HashMap<>();
        JSONObject wanted = request.getJSONObject("attributes");
        for (String key : wanted == null ? Set.<String>of() : wanted.keySet()) {
            attributes.put("+" + key, wanted.getString(key));
        }
        TopicConfig config = new TopicConfig(request.getString("topic"), queues, queues, 6, 0);
        config.setAttributes(attributes);
        broker.getTopicConfigManager().updateTopicConfig(config);
        broker.registerBrokerAll(true, false, true);
        return true;
    }

    private static Object delete(JSONObject request) {
        String topic = request.getString("topic");
        broker.getTopicConfigManager().deleteTopicConfig(topic);
        return broker.getMessageStore().deleteTopics(Set.of(topic));
    }

    private static DefaultMQProducer producer(JSONObject request) throws Exception {
        String type = request.getString("compression");
        String key = type == null ? "" : type;
        DefaultMQProducer found = PRODUCERS.get(key);
        if (found == null) {
            found = new DefaultMQProducer("senders" + key);
            found.setNamesrvAddr(names);
            found.setInstanceName("sender" + clients++);
            found.setCompressMsgBodyOverHowmuch(type == null ? Integer.MAX_VALUE : 100);
            found.start();
            if (type != null) {
                found.setCompressType(CompressionType.valueOf(type));
            }
            PRODUCERS.put(key, found);
        }
        return found;
    }

    private static Message message(String topic, JSONObject wanted) {
        byte[] body = Base64.getDecoder().decode(wanted.getString("body"));
        Message message = new Message(topic, wanted.getString("tags"), wanted.getString("keys"), body);
        JSONObject properties = wanted.getJSONObject("properties");
        for (String key : properties == null ? Set.<String>of() : properties.keySet()) {
            MessageAccessor.putProperty(message, key, properties.getString(key));
        }
        if (wanted.containsKey("level")) {
            message.setDelayTimeLevel(wanted.getIntValue("level"));
        }
        if (wanted.containsKey("deliver_ms")) {
            message.setDeliverTimeMs(wanted.getLongValue("deliver_ms"));
        }
        return message;
    }

    private static Object place(SendResult sent) {
        if (sent.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(sent.toString());
        }
        return new JSONObject()
            .fluentPut("queue", sent.getMessageQueue().getQueueId())
            .fluentPut("offset", sent.getQueueOffset())
            .fluentPut("id", sent.getMsgId());
    }

    private static Object send(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        List<Object> places = new ArrayList<>();
        for (Object each : request.getJSONArray("messages")) {
            JSONObject wanted = (JSONObject) each;
            MessageQueue queue =
                new MessageQueue(topic, broker.getBrokerConfig().getBrokerName(), wanted.getIntValue("queue"));
            places.add(place(producer(request).send(message(topic, wanted), queue, TIMEOUT_MS)));
        }
        return places;
    }

    private static Object batch(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        Collection<Message> messages = new ArrayList<>();
        for (Object each : request.getJSONArray("messages")) {
            messages.add(message(topic, (JSONObject) each));
        }
        MessageQueue queue = new MessageQueue(topic, broker.getBrokerConfig().getBrokerName(), 0);
        return place(producer(request).send(messages, queue, TIMEOUT_MS));
    }

    /** Begin transactions; the property "local" says what the sender says, "check" what it answers. */
    private static Object transactions(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        if (transactional == null) {
            transactional = new TransactionMQProducer("payers");
            transactional.setNamesrvAddr(names);
            transactional.setInstanceName("payer" + clients++);
            transactional.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    return state(message.getProperty("local"));
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    CHECKS.merge(message.getKeys(), 1, Integer::sum);
                    String said = message.getProperty("check");
                    int from = Integer.parseInt(message.getProperty("from"));
                    return state(CHECKS.get(message.getKeys()) >= from ? said : "unknown");
                }
            });
            transactional.start();
            // A broker asks who has told it of itself; a client tells the brokers of the topics that it knows.
            MQClientInstance client = transactional.getDefaultMQProducerImpl().getMqClientFactory();
            client.updateTopicRouteInfoFromNameServer(topic);
            client.sendHeartbeatToAllBrokerWithLock();
        }
        List<Object> places = new ArrayList<>();
        JSONArray wanted = request.getJSONArray("messages");
        for (Object each : wanted == null ? new JSONArray() : wanted) {
            places.add(place(transactional.sendMessageInTransaction(message(topic, (JSONObject) each), null)));
        }
        return places;
    }

    /** Whether all transactions have ended, by op records, and no check has stored a half message for a while. */
    private static Object quiet() throws Exception {
        long end = broker.getMessageStore().getMaxOffsetInQueue(TransactionalMessageUtil.buildHalfTopic(), 0);
        if (end != halfEnd) {
            halfEnd = end;
            halfEndSince = System.currentTimeMillis();
        }
        TransactionalMessageServiceImpl service =
            (TransactionalMessageServiceImpl) broker.getTransactionalMessageService();
        boolean told = service.getDeleteContext().values().stream().allMatch(each -> each.getTotalSize().get() == 0);
        return told && System.currentTimeMillis() - halfEndSince > QUIET_MS;
    }

    private static LocalTransactionState state(String said) {
        switch (said) {
            case "commit": return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
            default: return LocalTransactionState.UNKNOW;
        }
    }

    private static DefaultLitePullConsumer reader(String group) throws Exception {
        DefaultLitePullConsumer reader = new DefaultLitePullConsumer(group);
        reader.setNamesrvAddr(names);
        reader.setInstanceName("reader" + clients++);
        reader.setAutoCommit(false);
        reader.start();
        return reader;
    }

    /** Every message of a topic, in the order of its queues, as the client hands it to a listener. */
    private static Object read(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        JSONArray found = new JSONArray();
        DefaultLitePullConsumer reader = reader("readers");
        try {
            Collection<MessageQueue> queues = reader.fetchMessageQueues(topic);
            reader.assign(queues);
            Map<Integer, Long> next = new TreeMap<>();
            Map<Integer, Long> ends = new TreeMap<>();
            for (MessageQueue queue : queues) {
                int id = queue.getQueueId();
                next.put(id, broker.getMessageStore().getMinOffsetInQueue(topic, id));
                ends.put(id, broker.getMessageStore().getMaxOffsetInQueue(topic, id));
                reader.seek(queue, next.get(id));
            }
            long deadline = System.currentTimeMillis() + TIMEOUT_MS;
            while (behind(next, ends) && System.currentTimeMillis() < deadline) {
                for (MessageExt message : reader.poll(500)) {
                    next.put(message.getQueueId(), message.getQueueOffset() + 1);
                    found.add(shown(message));
                }
            }
            if (behind(next, ends)) {
                throw new IllegalStateException("read up to " + next + ", the queues end at " + ends);
            }
        } finally {
            reader.shutdown();
        }
        return found;
    }

    private static boolean behind(Map<Integer, Long> next, Map<Integer, Long> ends) {
        for (Map.Entry<Integer, Long> end : ends.entrySet()) {
            if (next.get(end.getKey()) < end.getValue()) {
                return true;
            }
        }
        return false;
    }

    private static JSONObject shown(MessageExt message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        return new JSONObject()
            .fluentPut("queue", message.getQueueId())
            .fluentPut("offset", message.getQueueOffset())
            .fluentPut("flags", message.getSysFlag())
            .fluentPut("tags", message.getTags())
            .fluentPut("keys", message.getKeys())
            .fluentPut("store_host", String.valueOf(message.getStoreHost()))
            .fluentPut("properties", message.getProperties())
            .fluentPut("body", Base64.getEncoder().encodeToString(body));
    }

    private static MQClientAPIImpl api() throws Exception {
        return producer(new JSONObject()).getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
    }

    /** Commit an offset as a consumer of a group does. */
    private static Object commit(JSONObject request) throws Exception {
        UpdateConsumerOffsetRequestHeader header = new UpdateConsumerOffsetRequestHeader();
        header.setConsumerGroup(request.getString("group"));
        header.setTopic(request.getString("topic"));
        header.setQueueId(request.getIntValue("queue"));
        header.setCommitOffset(request.getLong("offset"));
        broker.getSubscriptionGroupManager().findSubscriptionGroupConfig(header.getConsumerGroup());
        api().updateConsumerOffset(broker.getBrokerAddr(), header, TIMEOUT_MS);
        return true;
    }

    /** Take messages by pop and acknowledge the first of them. */
    private static Object pop(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        String group = request.getString("group");
        MQClientAPIImpl api = api();
        String name = broker.getBrokerConfig().getBrokerName();
        broker.getSubscriptionGroupManager().findSubscriptionGroupConfig(group);
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setTopic(topic);
        header.setConsumerGroup(group);
        header.setQueueId(request.getIntValue("queue"));
        header.setMaxMsgNums(request.getIntValue("count"));
        header.setInvisibleTime(request.getLongValue("invisible_ms"));
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType("TAG");
        header.setExp("*");
        CompletableFuture<PopResult> popped = new CompletableFuture<>();
        api.popMessageAsync(name, broker.getBrokerAddr(), header, TIMEOUT_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                popped.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                popped.completeExceptionally(failure);
            }
        });
        JSONArray found = new JSONArray();
        int acknowledge = request.getIntValue("acknowledge");
        List<MessageExt> messages = popped.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).getMsgFoundList();
        for (MessageExt message : messages == null ? List.<MessageExt>of() : messages) {
            found.add(shown(message));
            if (found.size() > acknowledge) {
                continue;
            }
            AckMessageRequestHeader done = new AckMessageRequestHeader();
            done.setTopic(topic);
            done.setConsumerGroup(group);
            done.setQueueId(message.getQueueId());
            done.setOffset(message.getQueueOffset());
            done.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
            CompletableFuture<AckResult> acknowledged = new CompletableFuture<>();
            api.ackMessageAsync(broker.getBrokerAddr(), TIMEOUT_MS, new AckCallback() {
                @Override
                public void onSuccess(AckResult result) {
                    acknowledged.complete(result);
                }

                @Override
                public void onException(Throwable failure) {
                    acknowledged.completeExceptionally(failure);
                }
            }, done);
            acknowledged.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        }
        return found;
    }

    private static Object ends(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        TopicConfig config = broker.getTopicConfigManager().selectTopicConfig(topic);
        List<Long> found = new ArrayList<>();
        for (int id = 0; id < (config == null ? 1 : config.getReadQueueNums()); id++) {
            found.add(broker.getMessageStore().getMaxOffsetInQueue(topic, id));
        }
        return found;
    }
}

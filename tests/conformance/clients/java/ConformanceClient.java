import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's Java client, told by lines what to do (see client_process.py). */
public class ConformanceClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, Closeable> CLIENTS = new HashMap<>();
    private static final Map<String, MessageView> MESSAGES = new HashMap<>();
    private static PrintStream out;

    public static void main(String[] args) throws Exception {
        out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject answer;
            try {
                answer = done(JSON.parseObject(line));
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = new JSONObject().fluentPut("error", failure.toString());
            }
            say("> ", answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String kind, JSONObject what) {
        out.println(kind + what.toJSONString());
        out.flush();
    }

    private static JSONObject done(JSONObject given) throws Exception {
        JSONObject answer = new JSONObject();
        switch (given.getString("do")) {
            case "producer": producer(given); break;
            case "simple": simple(given); break;
            case "push": push(given); break;
            case "lite_push": litePush(given); break;
            case "subscribe":
                if (given.getBooleanValue("first")) {
                    lite(given).subscribeLite(given.getString("lite"), OffsetOption.MIN_OFFSET);
                } else {
                    lite(given).subscribeLite(given.getString("lite"));
                }
                break;
            case "unsubscribe": lite(given).unsubscribeLite(given.getString("lite")); break;
            case "send": return send(given);
            case "recall":
                answer.put("id", ((Producer) CLIENTS.get(given.getString("name")))
                    .recallMessage(given.getString("topic"), given.getString("handle"))
                    .getMessageId().toString());
                break;
            case "receive": return receive(given);
            case "ack": consumer(given).ack(MESSAGES.get(given.getString("handle"))); break;
            case "change":
                consumer(given).changeInvisibleDuration(
                    MESSAGES.get(given.getString("handle")), Duration.ofMillis(given.getLongValue("after_ms")));
                break;
            case "stop": CLIENTS.remove(given.getString("name")).close(); break;
            default: answer.put("unsupported", given.getString("do"));
        }
        return answer;
    }

    private static ClientConfiguration configuration(JSONObject given) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(given.getString("endpoint"))
            .enableSsl(given.getBooleanValue("tls"));
        if (given.containsKey("namespace")) {
            builder.setNamespace(given.getString("namespace"));
        }
        if (given.containsKey("access_key")) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                given.getString("access_key"), given.getString("secret_key")));
        }
        return builder.build();
    }

    private static void producer(JSONObject given) throws Exception {
        ProducerBuilder builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(given))
            .setTopics(given.getJSONArray("topics").toArray(new String[0]));
        String resolution = given.getString("check");
        if (resolution != null) {
            builder.setTransactionChecker(message -> {
                say("* ", view(message).fluentPut("event", "check"));
                return TransactionResolution.valueOf(resolution.toUpperCase());
            });
        }
        CLIENTS.put(given.getString("name"), builder.build());
    }

    private static JSONObject send(JSONObject given) throws Exception {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(given.getString("topic"))
            .setBody(given.getString("body").getBytes(StandardCharsets.UTF_8));
        if (given.containsKey("tag")) {
            builder.setTag(given.getString("tag"));
        }
        if (given.containsKey("keys")) {
            builder.setKeys(given.getJSONArray("keys").toArray(new String[0]));
        }
        JSONObject properties = given.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((key, value) -> builder.addProperty(key, (String) value));
        }
        if (given.containsKey("group")) {
            builder.setMessageGroup(given.getString("group"));
        }
        if (given.containsKey("lite")) {
            builder.setLiteTopic(given.getString("lite"));
        }
        if (given.containsKey("priority")) {
            builder.setPriority(given.getIntValue("priority"));
        }
        if (given.containsKey("delay_ms")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + given.getLongValue("delay_ms"));
        }
        Message message = builder.build();
        Producer producer = (Producer) CLIENTS.get(given.getString("name"));
        String end = given.getString("end");
        SendReceipt receipt;
        if (end == null) {
            receipt = producer.send(message);
        } else {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(message, transaction);
            if (end.equals("commit")) {
                transaction.commit();
            } else if (end.equals("rollback")) {
                transaction.rollback();
            }
        }
        return new JSONObject().fluentPut("id", receipt.getMessageId().toString())
            .fluentPut("recall", receipt.getRecallHandle());
    }

    private static FilterExpression filter(JSONObject given) {
        return given.containsKey("sql")
            ? new FilterExpression(given.getString("sql"), FilterExpressionType.SQL92)
            : new FilterExpression(given.containsKey("tag") ? given.getString("tag") : "*", FilterExpressionType.TAG);
    }

    private static void simple(JSONObject given) throws Exception {
        CLIENTS.put(given.getString("name"), PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(given))
            .setConsumerGroup(given.getString("group"))
            .setAwaitDuration(Duration.ofMillis(given.getLongValue("await_ms")))
            .setSubscriptionExpressions(Map.of(given.getString("topic"), filter(given)))
            .build());
    }

    private static SimpleConsumer consumer(JSONObject given) {
        return (SimpleConsumer) CLIENTS.get(given.getString("name"));
    }

    private static JSONObject receive(JSONObject given) throws Exception {
        JSONArray found = new JSONArray();
        for (MessageView message : consumer(given).receive(
                given.getIntValue("max"), Duration.ofMillis(given.getLongValue("invisible_ms")))) {
            String handle = "m" + MESSAGES.size();
            MESSAGES.put(handle, message);
            found.add(view(message).fluentPut("handle", handle));
        }
        return new JSONObject().fluentPut("messages", found);
    }

    private static void push(JSONObject given) throws Exception {
        CLIENTS.put(given.getString("name"), PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(given))
            .setConsumerGroup(given.getString("group"))
            .setSubscriptionExpressions(Map.of(given.getString("topic"), filter(given)))
            .setMessageListener(listener(given))
            .build());
    }

    private static void litePush(JSONObject given) throws Exception {
        CLIENTS.put(given.getString("name"), PROVIDER.newLitePushConsumerBuilder()
            .bindTopic(given.getString("topic"))
            .setClientConfiguration(configuration(given))
            .setConsumerGroup(given.getString("group"))
            .setMessageListener(listener(given))
            .build());
    }

    private static LitePushConsumer lite(JSONObject given) {
        return (LitePushConsumer) CLIENTS.get(given.getString("name"));
    }

    private static MessageListener listener(JSONObject given) {
        int fails = given.getIntValue("fails");
        String failing = given.getString("failing");
        boolean holds = given.getBooleanValue("holds");
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        return message -> {
            JSONObject view = view(message).fluentPut("event", "message");
            say("* ", view);
            String workMs = message.getProperties().get("work_ms");
            if (workMs != null) {
                try {
                    Thread.sleep(Long.parseLong(workMs));
                } catch (InterruptedException interrupted) {
                    return ConsumeResult.FAILURE;
                }
                say("* ", view(message).fluentPut("event", "worked"));
            }
            if (holds) {
                new CompletableFuture<>().join();
            }
            int times = seen.merge(view.getString("id"), 1, Integer::sum);
            boolean concerned = failing == null || failing.equals(view.getString("body"));
            return concerned && times <= fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
    }

    private static JSONObject view(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new JSONObject()
            .fluentPut("id", message.getMessageId().toString())
            .fluentPut("topic", message.getTopic())
            .fluentPut("body", new String(bytes, StandardCharsets.UTF_8))
            .fluentPut("tag", message.getTag().orElse(null))
            .fluentPut("keys", message.getKeys())
            .fluentPut("properties", message.getProperties())
            .fluentPut("group", message.getMessageGroup().orElse(null))
            .fluentPut("lite", message.getLiteTopic().orElse(null))
            .fluentPut("priority", message.getPriority().orElse(null))
            .fluentPut("attempt", message.getDeliveryAttempt());
    }
}

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.proxy.ProxyStartup;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * RocketMQ's nameserver and its proxy in local mode, and its admin client, told by lines of JSON.
 *
 * Arguments: the proxy's configuration, the broker's, the nameserver's port, the broker's port, and,
 * where calls are to be signed, a user's name and password.
 * It ends when its input does. Answers begin with "> "; whatever else is printed is RocketMQ's.
 */
public class RocketMqProxy {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        int names = Integer.parseInt(args[2]);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(names);
        server.setBindAddress("127.0.0.1");
        NamesrvController nameserver =
            new NamesrvController(new NamesrvConfig(), server, new NettyClientConfig());
        if (!nameserver.initialize()) {
            System.exit(3);
        }
        nameserver.start();
        System.setProperty("rocketmq.namesrv.addr", "127.0.0.1:" + names);
        ProxyStartup.main(new String[] {"-pm", "local", "-pc", args[0], "-bc", args[1]});
        RPCHook signing = args.length < 6 ? null
            : new AclClientRPCHook(new SessionCredentials(args[4], args[5]));
        DefaultMQAdminExt admin = new DefaultMQAdminExt(signing);
        admin.setNamesrvAddr("127.0.0.1:" + names);
        admin.start();
        out.println("> {}");
        out.flush();
        String broker = "127.0.0.1:" + args[3];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject answer = new JSONObject();
            try {
                make(admin, broker, JSON.parseObject(line), answer);
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer.put("error", failure.toString());
            }
            out.println("> " + answer.toJSONString());
            out.flush();
        }
        // The shutdown hooks close broker and proxy.
        System.exit(0);
    }

    private static void make(DefaultMQAdminExt admin, String broker, JSONObject what, JSONObject answer)
        throws Exception {
        String name = what.getString("name");
        switch (what.getString("do")) {
            case "topic":
                int queues = what.getIntValue("queues");
                TopicConfig topic = new TopicConfig(name, queues, queues, 6, 0);
                topic.setAttributes(Map.of("+message.type", what.getString("type")));
                admin.createAndUpdateTopicConfig(broker, topic);
                break;
            case "group":
                SubscriptionGroupConfig group = new SubscriptionGroupConfig();
                group.setGroupName(name);
                group.setConsumeMessageOrderly(what.getBooleanValue("fifo"));
                if (what.containsKey("lite")) {
                    group.setAttributes(Map.of("+lite.bind.topic", what.getString("lite")));
                }
                if (what.containsKey("retries")) {
                    group.setRetryMaxTimes(what.getIntValue("retries"));
                }
                admin.createAndUpdateSubscriptionGroupConfig(broker, group);
                break;
            case "stored":
                answer.put("stored", stored(admin, name));
                break;
            default:
                throw new IllegalArgumentException(what.getString("do"));
        }
    }

    /** Messages of a topic. Its broker tells the name server of a new one a moment later. */
    private static long stored(DefaultMQAdminExt admin, String topic) throws Exception {
        long patience = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
            try {
                return admin.examineTopicStats(topic).getOffsetTable().values().stream()
                    .mapToLong(TopicOffset::getMaxOffset).sum();
            } catch (MQClientException unknown) {
                if (unknown.getResponseCode() != ResponseCode.TOPIC_NOT_EXIST || System.nanoTime() > patience) {
                    throw unknown;
                }
                Thread.sleep(100);
            }
        }
    }
}

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.tools.ConsumerPerformance;
import org.apache.kafka.tools.ProducerPerformance;

/** Kafka's Java client, for `make compare`: bulk by Kafka's own perf tools, in this process. */
public final class KafkaCompareClient extends CompareClient {
    // As Rockoon's producer has them.
    private static final String BATCH_BYTES = "524288";
    private static final String LINGER_MS = "5";
    private static final double FIRST_RATE = 100_000;
    private static final Pattern SENT = Pattern.compile("(\\d+) records sent, ([\\d.]+) records/sec");
    private final Map<Integer, Double> rates = new HashMap<>();
    private String address;
    private KafkaProducer<byte[], byte[]> single;

    public static void main(String[] arguments) throws Exception {
        Locale.setDefault(Locale.ROOT);
        new KafkaCompareClient().serve();
    }

    @Override
    void connect(String address) {
        this.address = address;
        Properties settings = settings();
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        single = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        return settings;
    }

    @Override
    void makeTopics(Map<String, Integer> queues) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        queues.forEach((name, count) -> topics.add(new NewTopic(name, count, (short) 1)));
        try (Admin admin = Admin.create(settings())) {
            admin.createTopics(topics).all().get();
        }
    }

    @Override
    void send(String topic, byte[] body) throws Exception {
        single.send(new ProducerRecord<>(topic, body)).get();
    }

    /** So many messages as the last run would have sent in the time. */
    @Override
    Work produceEach(String topic, int bytes, double seconds) throws Exception {
        long count = Math.max((long) (rates.getOrDefault(bytes, FIRST_RATE) * seconds), 1000);
        String said = printed(() -> {
            ProducerPerformance.main(new String[] {
                "--topic", topic, "--num-records", "" + count, "--record-size", "" + bytes, "--throughput", "-1",
                "--bootstrap-server", address,
                "--command-property", "acks=all", "linger.ms=" + LINGER_MS, "batch.size=" + BATCH_BYTES,
            });
            return null;
        });
        Matcher line = SENT.matcher(said);
        double rate = 0;
        while (line.find()) {
            // The last line is of all of them.
            rate = Double.parseDouble(line.group(2));
        }
        if (rate == 0) {
            throw new IllegalStateException("ProducerPerformance said: " + said);
        }
        rates.put(bytes, rate);
        return new Work(count, count / rate, List.of());
    }

    @Override
    Work consumeLists(String topic, long stored, double seconds) throws Exception {
        String said = printed(() -> {
            ConsumerPerformance.main(new String[] {
                "--topic", topic, "--num-records", "" + stored, "--group", "read-" + UUID.randomUUID(),
                "--bootstrap-server", address, "--hide-header", "--timeout", "10000",
            });
            return null;
        });
        // start, end, MB, MB/s, messages, messages/s, rebalance ms, fetch ms, fetch MB/s, fetch messages/s
        String[] lines = said.strip().split("\n");
        String[] fields = lines[lines.length - 1].split(", *");
        if (fields.length < 10) {
            throw new IllegalStateException("ConsumerPerformance said: " + said);
        }
        return new Work(Long.parseLong(fields[4]), Double.parseDouble(fields[7]) / 1000, List.of());
    }

    @Override
    AutoCloseable listen(String topic, Consumer<byte[]> note) {
        Properties settings = settings();
        settings.put("group.id", "listen-" + UUID.randomUUID());
        settings.put("auto.offset.reset", "earliest");
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        Thread polling = new Thread(() -> {
            while (!Thread.currentThread().isInterrupted()) {
                try {
                    for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                        note.accept(each.value());
                    }
                } catch (org.apache.kafka.common.errors.InterruptException ended) {
                    break;
                }
            }
            Thread.interrupted();
            consumer.close();
        });
        polling.start();
        return () -> {
            polling.interrupt();
            polling.join();
        };
    }

    /** What something prints. */
    private static String printed(Callable<Void> what) throws Exception {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(said, true));
        try {
            what.call();
        } finally {
            System.setOut(before);
        }
        return said.toString();
    }
}

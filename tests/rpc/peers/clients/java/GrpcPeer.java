import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Client in Java: each line of its input names a case, it plays the case and prints a line. "CASE
 * ADDRESS [ARGUMENT…]" is answered by "ok [NOTE]" or "failed REASON".
 */
public class GrpcPeer {
    static final String DETAILS = "kein Wasser: 5 % Öl, 水";
    static final String TEXT = "text, with = and ;";
    static final int SECONDS = 50;
    static final Metadata.Key<String> REASON = text("x-reason");
    static final Metadata.Key<byte[]> REASON_BIN = binary("x-reason-bin");
    static int keys = 0;

    final ManagedChannel channel;
    final String key = "java" + ProcessHandle.current().pid() + "-" + keys++;

    GrpcPeer(ManagedChannel channel) {
        this.channel = channel;
    }

    static class Failed extends RuntimeException {
        Failed(String reason) {
            super(reason);
        }
    }

    static void check(boolean holds, Object... seen) {
        if (!holds) {
            throw new Failed(Arrays.toString(seen));
        }
    }

    static Metadata.Key<String> text(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    static Metadata.Key<byte[]> binary(String name) {
        return Metadata.Key.of(name, Metadata.BINARY_BYTE_MARSHALLER);
    }

    /** Bytes as they are. */
    static class Raw implements MethodDescriptor.Marshaller<byte[]> {
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
    }

    static MethodDescriptor<byte[], byte[]> method(String name, MethodDescriptor.MethodType type) {
        return MethodDescriptor.<byte[], byte[]>newBuilder(new Raw(), new Raw())
            .setType(type)
            .setFullMethodName("peers.Peers/" + name)
            .build();
    }

    static CallOptions within(int milliseconds) {
        return CallOptions.DEFAULT.withDeadlineAfter(milliseconds, TimeUnit.MILLISECONDS);
    }

    ClientCall<byte[], byte[]> open(String name) {
        return channel.newCall(method(name, MethodDescriptor.MethodType.BIDI_STREAMING), within(SECONDS * 1000));
    }

    byte[] unary(String name, byte[] request, CallOptions options) {
        return ClientCalls.blockingUnaryCall(channel, method(name, MethodDescriptor.MethodType.UNARY), options, request);
    }

    byte[] unary(String name, byte[] request) {
        return unary(name, request, within(SECONDS * 1000));
    }

    String call(String name, String request) {
        return new String(unary(name, request.getBytes()));
    }

    StatusRuntimeException failure(String name, byte[] request, CallOptions options) {
        try {
            unary(name, request, options);
        } catch (StatusRuntimeException failure) {
            return failure;
        }
        throw new Failed("no error");
    }

    /** A stream's answers, and its end. */
    class Chat implements StreamObserver<byte[]> {
        final BlockingQueue<Object> answers = new LinkedBlockingQueue<>();
        final StreamObserver<byte[]> requests;
        final ClientCall<byte[], byte[]> call;

        Chat(String name, byte[]... first) {
            call = open(name);
            requests = ClientCalls.asyncBidiStreamingCall(call, this);
            for (byte[] each : first) {
                requests.onNext(each);
            }
        }

        public void onNext(byte[] answer) {
            answers.add(answer);
        }

        public void onError(Throwable failure) {
            answers.add(failure);
        }

        public void onCompleted() {
            answers.add(Status.OK);
        }

        Object next() throws InterruptedException {
            return answers.poll(SECONDS, TimeUnit.SECONDS);
        }

        String read() throws InterruptedException {
            Object found = next();
            check(found instanceof byte[], found);
            return new String((byte[]) found, StandardCharsets.ISO_8859_1);
        }

        /** Send no further requests. */
        Chat half() {
            requests.onCompleted();
            return this;
        }

        List<byte[]> rest() throws InterruptedException {
            List<byte[]> found = new ArrayList<>();
            Object each;
            while ((each = next()) instanceof byte[]) {
                found.add((byte[]) each);
            }
            check(each == Status.OK, each);
            return found;
        }
    }

    void echoes() {
        for (int length : new int[] {0, 1, 16379, 70000}) {
            check(unary("Echo", new byte[length]).length == length, length);
        }
    }

    void clientStream() throws Exception {
        for (int[] each : new int[][] {{0, 0}, {1, 10}, {1000, 100}, {3, 200000}}) {
            Chat join = new Chat("Join");
            for (int number = 0; number < each[0]; number++) {
                join.requests.onNext(new byte[each[1]]);
            }
            List<byte[]> answers = join.half().rest();
            check(new String(answers.get(0)).equals(each[0] + " " + each[0] * each[1]), each[0]);
        }
    }

    void serverStream() throws Exception {
        for (int[] each : new int[][] {{0, 0}, {1, 10}, {10000, 100}, {3, 200000}}) {
            List<byte[]> answers = new Chat("Split", (each[0] + " " + each[1]).getBytes()).half().rest();
            check(answers.size() == each[0], answers.size());
            check(answers.stream().allMatch(answer -> answer.length == each[1]), each[1]);
        }
    }

    void bidirectional() throws Exception {
        Chat chat = new Chat("Chat");
        for (int number = 0; number < 100; number++) {
            chat.requests.onNext(("" + number).getBytes());
            check(chat.read().equals("" + number), number);
        }
        check(chat.half().rest().isEmpty());
    }

    void longMessages(int length) throws Exception {
        byte[] body = new byte[length];
        for (int at = 0; at < length; at++) {
            body[at] = (byte) (at * 31);
        }
        check(Arrays.equals(unary("Echo", body), body), "unary");
        for (byte[] each : new Chat("Chat", body, body).half().rest()) {
            check(Arrays.equals(each, body), "chat");
        }
    }

    String concurrent(int count, String gathered) throws Exception {
        List<Future<byte[]>> calls = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            ClientCall<byte[], byte[]> call = channel.newCall(method("Gather", MethodDescriptor.MethodType.UNARY), within(SECONDS * 1000));
            calls.add(ClientCalls.futureUnaryCall(call, (key + " " + gathered).getBytes()));
        }
        Set<String> found = new HashSet<>();
        for (Future<byte[]> each : calls) {
            found.add(new String(each.get()));
        }
        return found.size() == 1 ? "1 connection" : found.size() + " connections";
    }

    void metadata() {
        byte[] bytes = new byte[256];
        for (int at = 0; at < 256; at++) {
            bytes[at] = (byte) at;
        }
        Metadata sent = new Metadata();
        sent.put(text("x-text"), TEXT);
        sent.put(binary("x-bytes-bin"), bytes);
        sent.put(binary("x-bytes-bin"), new byte[0]);
        sent.put(text("x-two"), "1");
        sent.put(text("x-two"), "2");
        AtomicReference<Metadata> headers = new AtomicReference<>();
        AtomicReference<Metadata> trailers = new AtomicReference<>();
        ClientCalls.blockingUnaryCall(
            ClientInterceptors.intercept(
                channel,
                MetadataUtils.newAttachHeadersInterceptor(sent),
                MetadataUtils.newCaptureMetadataInterceptor(headers, trailers)),
            method("Metadata", MethodDescriptor.MethodType.UNARY), within(SECONDS * 1000), new byte[0]);
        for (Metadata seen : List.of(headers.get(), trailers.get())) {
            check(TEXT.equals(seen.get(text("x-text"))), seen);
            List<byte[]> values = new ArrayList<>();
            seen.getAll(binary("x-bytes-bin")).forEach(values::add);
            check(values.size() == 2 && Arrays.equals(values.get(0), bytes) && values.get(1).length == 0, seen);
            List<String> two = new ArrayList<>();
            seen.getAll(text("x-two")).forEach(two::add);
            check(two.equals(List.of("1", "2")), two);
        }
    }

    void notFound(Object end) {
        check(end instanceof StatusRuntimeException, end);
        StatusRuntimeException failure = (StatusRuntimeException) end;
        check(failure.getStatus().getCode() == Status.Code.NOT_FOUND, failure);
        check(DETAILS.equals(failure.getStatus().getDescription()), failure);
        check("dry".equals(failure.getTrailers().get(REASON)), failure.getTrailers());
        byte[] wanted = {0, (byte) 0xff, ',', (byte) 0x80};
        check(Arrays.equals(failure.getTrailers().get(REASON_BIN), wanted), failure.getTrailers());
    }

    void error() throws Exception {
        notFound(failure("Fail", new byte[0], within(SECONDS * 1000)));
        Chat late = new Chat("FailLate", "x".getBytes()).half();
        check(late.read().equals("x"));
        notFound(late.next());
    }

    void deadline() {
        int left = Integer.parseInt(new String(unary("Remaining", new byte[0], within(20000))));
        check(15000 < left && left < 21000, left);
        Status status = failure("Wait", key.getBytes(), within(1000)).getStatus();
        check(status.getCode() == Status.Code.DEADLINE_EXCEEDED, status);
        check(call("Ended", key).equals("yes"), "the handler goes on");
    }

    void cancel() throws Exception {
        ClientCall<byte[], byte[]> waiting = channel.newCall(method("Wait", MethodDescriptor.MethodType.UNARY), CallOptions.DEFAULT);
        Future<byte[]> answer = ClientCalls.futureUnaryCall(waiting, (key + "u").getBytes());
        check(call("Begun", key + "u").equals("yes"), "the unary handler does not begin");
        answer.cancel(true);
        check(call("Ended", key + "u").equals("yes"), "the unary handler goes on");
        Chat chat = new Chat("WaitStream", (key + "s").getBytes());
        check(chat.read().equals(key + "s"));
        chat.call.cancel("no longer wanted", null);
        check(call("Ended", key + "s").equals("yes"), "the stream's handler goes on");
    }

    void leave() throws Exception {
        call("Echo", "");
        Chat leaving = new Chat("Leave", "x".getBytes()).half();
        leaving.read();
        AtomicBoolean isOver = new AtomicBoolean();
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<Object>> callers = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            callers.add(pool.submit(() -> {
                while (!isOver.get()) {
                    call("Echo", "later");
                }
                return null;
            }));
        }
        try {
            leaving.read();
            leaving.rest();
            isOver.set(true);
            for (Future<Object> each : callers) {
                each.get();
            }
        } finally {
            isOver.set(true);
            pool.shutdown();
        }
        call("Echo", "");
    }

    void keepalive(String quiet) throws Exception {
        Chat silent = new Chat("Quiet", quiet.getBytes()).half();
        String first = silent.read();
        check(silent.read().equals(first));
        check(call("Gather", key + "k 1").equals(first), "reconnected");
    }

    void unknownMethod() {
        Status status = failure("Nothing", new byte[0], within(SECONDS * 1000)).getStatus();
        check(status.getCode() == Status.Code.UNIMPLEMENTED, status);
        check(status.getDescription().contains("Nothing"), status);
        call("Echo", "");
    }

    void tooLong(int length) throws Exception {
        Status status = failure("Echo", new byte[length], within(SECONDS * 1000)).getStatus();
        check(status.getCode() == Status.Code.RESOURCE_EXHAUSTED, status);
        check(status.getDescription().matches(".*\\d.*"), status);
        Object end = new Chat("Join", "short".getBytes(), new byte[length]).next();
        check(end instanceof StatusRuntimeException, end);
        check(((StatusRuntimeException) end).getStatus().getCode() == Status.Code.RESOURCE_EXHAUSTED, end);
        call("Echo", "");
    }

    void gzip() {
        Status status = failure("Echo", new byte[10000], within(SECONDS * 1000).withCompression("gzip")).getStatus();
        check(status.getCode() == Status.Code.UNIMPLEMENTED, status);
        check(status.getDescription().contains("compress"), status);
        call("Echo", "");
    }

    String play(String name, String[] words) throws Exception {
        switch (name) {
            case "unary": echoes(); break;
            case "client-stream": clientStream(); break;
            case "server-stream": serverStream(); break;
            case "bidirectional": bidirectional(); break;
            case "long": longMessages(Integer.parseInt(words[2])); break;
            case "concurrent": return "ok " + concurrent(Integer.parseInt(words[2]), words[3]);
            case "metadata": metadata(); break;
            case "error": error(); break;
            case "deadline": deadline(); break;
            case "cancel": cancel(); break;
            case "leave": leave(); break;
            case "keepalive": keepalive(words[3]); break;
            case "unknown-method": unknownMethod(); break;
            case "too-long": tooLong(Integer.parseInt(words[2])); break;
            case "gzip": gzip(); break;
            case "tls":
                echoes();
                clientStream();
                serverStream();
                bidirectional();
                longMessages(1 << 20);
                break;
            default: return "failed there is no case " + name;
        }
        return "ok";
    }

    static String played(String[] words) {
        ManagedChannel channel = null;
        try {
            ManagedChannelBuilder<?> builder = words[0].equals("tls")
                ? Grpc.newChannelBuilder(words[1], TlsChannelCredentials.newBuilder().trustManager(new File(words[2])).build())
                : Grpc.newChannelBuilder(words[1], InsecureChannelCredentials.create());
            builder.maxInboundMessageSize(64 << 20);
            if (words[0].equals("keepalive")) {
                builder.keepAliveTime(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
                builder.keepAliveTimeout(5, TimeUnit.SECONDS);
            }
            channel = builder.build();
            return new GrpcPeer(channel).play(words[0], words);
        } catch (Exception failure) {
            failure.printStackTrace();
            return "failed " + failure.toString().replace('\n', ' ');
        } finally {
            if (channel != null) {
                channel.shutdownNow();
            }
        }
    }

    public static void main(String[] given) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = lines.readLine()) != null) {
            System.out.println(played(line.split(" ")));
        }
        System.exit(0);
    }
}

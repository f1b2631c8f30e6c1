// Client in Go: each line of its input names a case, it plays the case and prints a line.
// "CASE ADDRESS [ARGUMENT…]" is answered by "ok [NOTE]" or "failed REASON". "serve CERTIFICATE KEY"
// runs the service instead (see server.go).
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	details = "kein Wasser: 5 % Öl, 水"
	text    = "text, with = and ;"
	seconds = 50 * time.Second
	longest = 64 << 20
)

var keys int

// raw passes bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }

func (raw) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte{}, data...)
	return nil
}

type failed string

func check(holds bool, seen ...any) {
	if !holds {
		panic(failed(fmt.Sprint(seen...)))
	}
}

func must(err error) {
	check(err == nil, err)
}

type client struct {
	*grpc.ClientConn
	key string
}

func (p client) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), seconds)
}

func (p client) try(name string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	ctx, cancel := p.context()
	defer cancel()
	return p.within(ctx, name, request, options...)
}

func (p client) within(ctx context.Context, name string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	var answer []byte
	err := p.Invoke(ctx, "/peers.Peers/"+name, &request, &answer, options...)
	return answer, err
}

func (p client) call(name string, request string) string {
	answer, err := p.try(name, []byte(request))
	must(err)
	return string(answer)
}

func (p client) stream(ctx context.Context, name string, requests ...[]byte) grpc.ClientStream {
	kind := grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := p.NewStream(ctx, &kind, "/peers.Peers/"+name)
	must(err)
	for _, each := range requests {
		must(stream.SendMsg(&each))
	}
	return stream
}

// all answers of a stream whose requests are over.
func all(stream grpc.ClientStream) (answers [][]byte, err error) {
	_ = stream.CloseSend()
	for {
		var answer []byte
		if err = stream.RecvMsg(&answer); err == io.EOF {
			return answers, nil
		} else if err != nil {
			return answers, err
		}
		answers = append(answers, answer)
	}
}

func receive(stream grpc.ClientStream) string {
	var answer []byte
	must(stream.RecvMsg(&answer))
	return string(answer)
}

func unary(p client) {
	for _, length := range []int{0, 1, 16379, 70000} {
		body := strings.Repeat("x", length)
		check(p.call("Echo", body) == body, length)
	}
}

func clientStream(p client) {
	for _, each := range [][2]int{{0, 0}, {1, 10}, {1000, 100}, {3, 200000}} {
		ctx, cancel := p.context()
		defer cancel()
		stream := p.stream(ctx, "Join")
		for range each[0] {
			body := make([]byte, each[1])
			must(stream.SendMsg(&body))
		}
		answers, err := all(stream)
		must(err)
		wanted := fmt.Sprint(each[0], each[0]*each[1])
		check(len(answers) == 1 && string(answers[0]) == wanted, answers)
	}
}

func serverStream(p client) {
	for _, each := range [][2]int{{0, 0}, {1, 10}, {10000, 100}, {3, 200000}} {
		ctx, cancel := p.context()
		defer cancel()
		answers, err := all(p.stream(ctx, "Split", []byte(fmt.Sprint(each[0], each[1]))))
		must(err)
		check(len(answers) == each[0], len(answers))
		for _, answer := range answers {
			check(len(answer) == each[1], len(answer))
		}
	}
}

func bidirectional(p client) {
	ctx, cancel := p.context()
	defer cancel()
	chat := p.stream(ctx, "Chat")
	for number := range 100 {
		body := []byte(strconv.Itoa(number))
		must(chat.SendMsg(&body))
		check(receive(chat) == string(body), number)
	}
	rest, err := all(chat)
	must(err)
	check(len(rest) == 0, len(rest))
}

func long(p client, length string) {
	count, _ := strconv.Atoi(length)
	body := bytes.Repeat([]byte("0123456789abcdef"), count/16)
	check(p.call("Echo", string(body)) == string(body), "unary")
	ctx, cancel := p.context()
	defer cancel()
	chat := p.stream(ctx, "Chat")
	for range 2 {
		must(chat.SendMsg(&body))
		check(receive(chat) == string(body), "chat")
	}
	_, err := all(chat)
	must(err)
}

func concurrent(p client, count, gathered string) string {
	calls, _ := strconv.Atoi(count)
	found := map[string]bool{}
	var errors []error
	var lock sync.Mutex
	var group sync.WaitGroup
	for range calls {
		group.Add(1)
		go func() {
			defer group.Done()
			answer, err := p.try("Gather", []byte(p.key+" "+gathered))
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				errors = append(errors, err)
			}
			found[string(answer)] = true
		}()
	}
	group.Wait()
	check(len(errors) == 0, len(errors), errors)
	if len(found) == 1 {
		return "1 connection"
	}
	return fmt.Sprint(len(found), " connections")
}

func sentMetadata(p client) {
	binary := make([]byte, 256)
	for at := range binary {
		binary[at] = byte(at)
	}
	sent := metadata.Pairs("x-text", text, "x-bytes-bin", string(binary), "x-bytes-bin", "", "x-two", "1", "x-two", "2")
	ctx, cancel := p.context()
	defer cancel()
	var header, trailer metadata.MD
	_, err := p.within(metadata.NewOutgoingContext(ctx, sent), "Metadata", nil, grpc.Header(&header), grpc.Trailer(&trailer))
	must(err)
	for _, seen := range []metadata.MD{header, trailer} {
		for key, values := range sent {
			check(fmt.Sprint(seen[key]) == fmt.Sprint(values), key, seen[key])
		}
	}
}

func failure(err error, trailer metadata.MD) {
	found := status.Convert(err)
	check(found.Code() == codes.NotFound && found.Message() == details, err)
	check(fmt.Sprint(trailer["x-reason"]) == "[dry]", trailer)
	check(fmt.Sprint(trailer["x-reason-bin"]) == "[\x00\xff,\x80]", trailer)
}

func sentError(p client) {
	var trailer metadata.MD
	_, err := p.try("Fail", nil, grpc.Trailer(&trailer))
	failure(err, trailer)
	ctx, cancel := p.context()
	defer cancel()
	stream := p.stream(ctx, "FailLate", []byte("x"))
	answers, err := all(stream)
	check(len(answers) == 1, len(answers))
	failure(err, stream.Trailer())
}

func deadline(p client) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	answer, err := p.within(ctx, "Remaining", nil)
	must(err)
	left, _ := strconv.Atoi(string(answer))
	check(15000 < left && left < 21000, left)
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = p.within(ctx, "Wait", []byte(p.key))
	check(status.Code(err) == codes.DeadlineExceeded, err)
	check(p.call("Ended", p.key) == "yes", "the handler goes on")
}

func cancels(p client) {
	ctx, cancel := p.context()
	key := p.key + "u"
	ended := make(chan error)
	go func() {
		_, err := p.within(ctx, "Wait", []byte(key))
		ended <- err
	}()
	check(p.call("Begun", key) == "yes", "the unary handler does not begin")
	cancel()
	check(status.Code(<-ended) == codes.Canceled)
	check(p.call("Ended", key) == "yes", "the unary handler goes on")
	ctx, cancel = p.context()
	key = p.key + "s"
	check(receive(p.stream(ctx, "WaitStream", []byte(key))) == key)
	cancel()
	check(p.call("Ended", key) == "yes", "the stream's handler goes on")
}

func leave(p client) {
	p.call("Echo", "")
	ctx, cancel := p.context()
	defer cancel()
	stream := p.stream(ctx, "Leave", []byte("x"))
	_ = stream.CloseSend()
	receive(stream)
	over := make(chan bool)
	errors := make(chan error, 8)
	for range 8 {
		go func() {
			for {
				select {
				case <-over:
					errors <- nil
					return
				default:
					if _, err := p.try("Echo", []byte("later")); err != nil {
						errors <- err
						return
					}
				}
			}
		}()
	}
	receive(stream)
	_, err := all(stream)
	must(err)
	close(over)
	for range 8 {
		must(<-errors)
	}
	p.call("Echo", "")
}

func alive(p client, quiet string) {
	ctx, cancel := p.context()
	defer cancel()
	stream := p.stream(ctx, "Quiet", []byte(quiet))
	_ = stream.CloseSend()
	first := receive(stream)
	check(receive(stream) == first)
	check(p.call("Gather", p.key+"k 1") == first, "reconnected")
}

func unknown(p client) {
	_, err := p.try("Nothing", nil)
	check(status.Code(err) == codes.Unimplemented, err)
	check(strings.Contains(err.Error(), "Nothing"), err)
	p.call("Echo", "")
}

func tooLong(p client, length string) {
	count, _ := strconv.Atoi(length)
	_, err := p.try("Echo", make([]byte, count))
	check(status.Code(err) == codes.ResourceExhausted, err)
	check(strings.ContainsAny(status.Convert(err).Message(), "0123456789"), err)
	ctx, cancel := p.context()
	defer cancel()
	stream := p.stream(ctx, "Join", []byte("short"))
	body := make([]byte, count)
	_ = stream.SendMsg(&body)
	_, err = all(stream)
	check(status.Code(err) == codes.ResourceExhausted, err)
	p.call("Echo", "")
}

func compressed(p client) {
	_, err := p.try("Echo", make([]byte, 10000), grpc.UseCompressor("gzip"))
	check(status.Code(err) == codes.Unimplemented, err)
	check(strings.Contains(err.Error(), "compress"), err)
	p.call("Echo", "")
}

func play(words []string) (said string) {
	name, address, given := words[0], words[1], words[2:]
	options := []grpc.DialOption{grpc.WithDefaultCallOptions(
		grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(longest), grpc.MaxCallSendMsgSize(longest),
	)}
	trust := insecure.NewCredentials()
	switch name {
	case "tls":
		var err error
		if trust, err = credentials.NewClientTLSFromFile(given[0], ""); err != nil {
			return fmt.Sprint("failed ", err)
		}
	case "keepalive":
		pause, _ := strconv.Atoi(given[0])
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: time.Duration(pause) * time.Millisecond, Timeout: 5 * time.Second,
		}))
	}
	channel, err := grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(trust))...)
	if err != nil {
		return fmt.Sprint("failed ", err)
	}
	defer channel.Close()
	defer func() {
		if reason, is := recover().(failed); is {
			said = "failed " + strings.ReplaceAll(string(reason), "\n", " ")
		}
	}()
	keys++
	p := client{channel, fmt.Sprintf("go%d-%d", os.Getpid(), keys)}
	switch name {
	case "unary":
		unary(p)
	case "client-stream":
		clientStream(p)
	case "server-stream":
		serverStream(p)
	case "bidirectional":
		bidirectional(p)
	case "long":
		long(p, given[0])
	case "concurrent":
		return "ok " + concurrent(p, given[0], given[1])
	case "metadata":
		sentMetadata(p)
	case "error":
		sentError(p)
	case "deadline":
		deadline(p)
	case "cancel":
		cancels(p)
	case "leave":
		leave(p)
	case "keepalive":
		alive(p, given[1])
	case "unknown-method":
		unknown(p)
	case "too-long":
		tooLong(p, given[0])
	case "gzip":
		compressed(p)
	case "tls":
		unary(p)
		clientStream(p)
		serverStream(p)
		bidirectional(p)
		long(p, strconv.Itoa(1<<20))
	default:
		return "failed there is no case " + name
	}
	return "ok"
}

func main() {
	if len(os.Args) > 1 {
		serve(os.Args[2], os.Args[3])
		return
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(play(strings.Fields(lines.Text())))
	}
}

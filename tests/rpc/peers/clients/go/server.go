package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const reusePort = 15

// service is the one of service.py.
type service struct {
	lock      sync.Mutex
	events    map[string]chan bool
	gathered  map[string]int
	leave     func() *service
	answered  chan bool
	answering sync.Once
}

func newService() *service {
	return &service{events: map[string]chan bool{}, gathered: map[string]int{}, answered: make(chan bool)}
}

func (s *service) event(key string) chan bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.events[key] == nil {
		s.events[key] = make(chan bool)
	}
	return s.events[key]
}

func (s *service) happened(key string) string {
	select {
	case <-s.event(key):
		return "yes"
	case <-time.After(30 * time.Second):
		return "no"
	}
}

func caller(ctx context.Context) string {
	found, _ := peer.FromContext(ctx)
	return found.Addr.String()
}

func (s *service) gather(request string) {
	var key string
	var count int
	fmt.Sscan(request, &key, &count)
	gate := s.event("gate " + key)
	s.lock.Lock()
	s.gathered[key]++
	if s.gathered[key] == count {
		close(gate)
	}
	s.lock.Unlock()
	<-gate
}

func (s *service) wait(ctx context.Context, key string) error {
	close(s.event("begun " + key))
	<-ctx.Done()
	close(s.event("ended " + key))
	return status.FromContextError(ctx.Err()).Err()
}

func sent(ctx context.Context) metadata.MD {
	found := metadata.MD{}
	given, _ := metadata.FromIncomingContext(ctx)
	for key, values := range given {
		if strings.HasPrefix(key, "x-") {
			found[key] = values
		}
	}
	return found
}

// handle answers calls of all kinds: each is a stream to grpc-go.
func (s *service) handle(_ any, stream grpc.ServerStream) error {
	ctx := stream.Context()
	path, _ := grpc.MethodFromServerStream(stream)
	name := strings.TrimPrefix(path, "/peers.Peers/")
	read := func() (string, error) {
		var request []byte
		err := stream.RecvMsg(&request)
		return string(request), err
	}
	write := func(answer string) error {
		sent := []byte(answer)
		return stream.SendMsg(&sent)
	}
	if name == "Join" || name == "Chat" {
		count, length := 0, 0
		for {
			request, err := read()
			if err == io.EOF {
				break
			} else if err != nil {
				return err
			}
			count, length = count+1, length+len(request)
			if name == "Chat" {
				if err := write(request); err != nil {
					return err
				}
			}
		}
		if name == "Join" {
			return write(fmt.Sprint(count, length))
		}
		return nil
	}
	request, err := read()
	if err != nil {
		return err
	}
	switch name {
	case "Echo":
		err = write(request)
		s.answering.Do(func() { close(s.answered) })
		return err
	case "Split":
		var count, length int
		fmt.Sscan(request, &count, &length)
		for range count {
			if err := write(string(make([]byte, length))); err != nil {
				return err
			}
		}
		return nil
	case "Gather":
		s.gather(request)
		return write(caller(ctx))
	case "Metadata":
		stream.SetTrailer(sent(ctx))
		if err := stream.SendHeader(sent(ctx)); err != nil {
			return err
		}
		return write("")
	case "FailLate", "Fail":
		if name == "FailLate" {
			_ = write(request)
		}
		stream.SetTrailer(metadata.Pairs("x-reason", "dry", "x-reason-bin", "\x00\xff,\x80"))
		return status.Error(codes.NotFound, details)
	case "Wait":
		return s.wait(ctx, request)
	case "WaitStream":
		_ = write(request)
		return s.wait(ctx, request)
	case "Begun", "Ended":
		return write(s.happened(strings.ToLower(name) + " " + request))
	case "Remaining":
		due, _ := ctx.Deadline()
		return write(fmt.Sprint(time.Until(due).Milliseconds()))
	case "Quiet":
		var quiet int
		fmt.Sscan(request, &quiet)
		_ = write(caller(ctx))
		time.Sleep(time.Duration(quiet) * time.Millisecond)
		return write(caller(ctx))
	case "Leave":
		_ = write(request)
		<-s.leave().answered
		return write(request)
	}
	return status.Error(codes.Unimplemented, "there is no method "+name)
}

func listen(port int) net.Listener {
	shared := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(number uintptr) {
			_ = syscall.SetsockoptInt(int(number), syscall.SOL_SOCKET, reusePort, 1)
		})
	}}
	listener, err := shared.Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		panic(err)
	}
	return listener
}

func start(s *service, port, longest int, more ...grpc.ServerOption) (*grpc.Server, int) {
	listener := listen(port)
	options := append(more,
		grpc.ForceServerCodec(raw{}),
		grpc.MaxRecvMsgSize(longest),
		grpc.MaxSendMsgSize(longest),
		grpc.MaxConcurrentStreams(1000),
		// By default it ends connections whose clients send PING more often than each five minutes.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(s.handle),
	)
	server := grpc.NewServer(options...)
	go server.Serve(listener)
	return server, listener.Addr().(*net.TCPAddr).Port
}

func startLeaving(port int) (*service, int) {
	s := newService()
	server, found := start(s, port, longest)
	s.leave = func() *service {
		successor, _ := startLeaving(found)
		go server.GracefulStop()
		return successor
	}
	return s, found
}

func serve(certificate, key string) {
	trust, err := credentials.NewServerTLSFromFile(certificate, key)
	if err != nil {
		panic(err)
	}
	_, plain := start(newService(), 0, longest)
	_, short := start(newService(), 0, 1<<20)
	_, secure := start(newService(), 0, longest, grpc.Creds(trust))
	_, leaving := startLeaving(0)
	fmt.Printf("127.0.0.1:%d 127.0.0.1:%d localhost:%d 127.0.0.1:%d\n", plain, short, secure, leaving)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

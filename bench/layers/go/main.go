// The methods of ../echo.py on grpc-go, for messages that are plain bytes: echo PORT
package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

const longBytes = 1 << 20

var long = make([]byte, longBytes)

// Messages are *[]byte; nothing is encoded.
type plain struct{}

func (plain) Name() string { return "plain" }

func (plain) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*message.(*[]byte))}, nil
}

func (plain) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = plain{}

func unary(name string, answer func([]byte) []byte) grpc.MethodDesc {
	handle := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request []byte
		if err := decode(&request); err != nil {
			return nil, err
		}
		reply := answer(request)
		return &reply, nil
	}
	return grpc.MethodDesc{MethodName: name, Handler: handle}
}

func received(stream grpc.ServerStream, each func([]byte) error) error {
	for {
		var request []byte
		if err := stream.RecvMsg(&request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := each(request); err != nil {
			return err
		}
	}
}

func echoes(_ any, stream grpc.ServerStream) error {
	return received(stream, func(request []byte) error { return stream.SendMsg(&request) })
}

func counts(_ any, stream grpc.ServerStream) error {
	found := 0
	if err := received(stream, func([]byte) error { found++; return nil }); err != nil {
		return err
	}
	reply := []byte(strconv.Itoa(found))
	return stream.SendMsg(&reply)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(plain{}), grpc.MaxRecvMsgSize(64<<20))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Echo",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			unary("Echo", func(request []byte) []byte { return request }),
			unary("In", func(request []byte) []byte { return []byte(strconv.Itoa(len(request))) }),
			unary("Out", func([]byte) []byte { return long }),
		},
		Streams: []grpc.StreamDesc{
			{StreamName: "Stream", Handler: echoes, ServerStreams: true, ClientStreams: true},
			{StreamName: "Count", Handler: counts, ClientStreams: true},
		},
	}, struct{}{})
	log.Fatal(server.Serve(listener))
}

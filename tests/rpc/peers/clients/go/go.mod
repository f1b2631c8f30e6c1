module peers

go 1.25

require google.golang.org/grpc v1.85.0

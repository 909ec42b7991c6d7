mod grpc;
mod problem;

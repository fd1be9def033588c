# The command `dlq`, for a look from inside a cluster, and for `dlq serve`:
#
#     docker build -t dlq .
#     docker run --rm -e DLQ_FROM=postgres://ana@db/orders dlq groups
#
# Built for SQLite, PostgreSQL, MongoDB, NATS, Kafka (with TLS) and Redis; other features by `--build-arg FEATURES=…`.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make perl pkg-config && rm -rf /var/lib/apt/lists/*
WORKDIR /dlq
COPY . .
ARG FEATURES=kafka-zstd
RUN cargo install --locked --path dlq-cli --features "$FEATURES" --root /out

# C and C++ libraries and the certificates of the web; no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/bin/dlq /usr/local/bin/dlq
ENTRYPOINT ["dlq"]

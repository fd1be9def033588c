//! A connection of a client that looks at nothing of what it writes: servers keep whatever headers there are.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use crate::fixture::{PATIENCE, Server};

#[derive(Debug)]
pub(crate) struct Raw(BufReader<TcpStream>);

impl Raw {
    pub(crate) fn connect(server: &Server) -> Self {
        let url = server.running().url().to_owned();
        let address = url.trim_start_matches("nats://");
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Self(BufReader::new(stream));
        raw.write(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n");
        raw.until_pong();
        raw
    }

    /// Publishes with these lines as headers, and waits until the server has it.
    pub(crate) fn publish(&mut self, subject: &str, headers: &[u8], payload: &str) {
        let block = [b"NATS/1.0\r\n", headers, b"\r\n"].concat();
        let whole = block.len() + payload.len();
        self.write(format!("HPUB {subject} {} {whole}\r\n", block.len()).as_bytes());
        self.write(&[&block[..], payload.as_bytes(), b"\r\n"].concat());
        self.until_pong();
    }

    /// Takes a message of a consumer and says nothing of it.
    pub(crate) fn take(&mut self, stream: &str, consumer: &str) {
        self.request(stream, consumer);
        self.taken();
    }

    /// Asks a consumer for a message, which comes later, and waits until the server has the request.
    pub(crate) fn ask(&mut self, stream: &str, consumer: &str) {
        self.request(stream, consumer);
        self.until_pong();
    }

    // A message that is there may come before a pong, and is not to be passed over while that is waited for.
    fn request(&mut self, stream: &str, consumer: &str) {
        self.write(b"SUB _INBOX.raw 1\r\n");
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        self.write(format!("PUB {subject} _INBOX.raw 1\r\n1\r\n").as_bytes());
    }

    /// Waits for the message that was asked for, and says nothing of it.
    pub(crate) fn taken(&mut self) {
        self.until("HMSG");
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn until_pong(&mut self) {
        self.write(b"PING\r\n");
        self.until("PONG");
    }

    fn until(&mut self, word: &str) {
        loop {
            let mut line = Vec::new();
            assert_ne!(self.0.read_until(b'\n', &mut line).unwrap(), 0, "the server closed it");
            let line = String::from_utf8_lossy(&line);
            assert!(!line.starts_with("-ERR"), "{line}");
            if line.starts_with(word) {
                return;
            }
        }
    }
}

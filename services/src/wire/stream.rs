use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::no_answer;
use crate::{Error, Service};

/// Longer answers than this are not from the servers we know.
const LONGEST: usize = 16 << 20;

/// A connection with a deadline for everything that is done over it.
#[derive(Debug)]
pub(crate) struct Stream {
    service: Service,
    address: String,
    tcp: TcpStream,
    deadline: Instant,
    /// Read and not yet consumed.
    buffer: Vec<u8>,
}

impl Stream {
    pub(crate) fn connect(
        service: Service,
        address: &str,
        patience: Duration,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + patience;
        let failed = |error: &dyn std::fmt::Display| {
            no_answer(service, format!("no connection to {address}: {error}"))
        };
        let mut last = None;
        for resolved in address.to_socket_addrs().map_err(|error| failed(&error))? {
            match TcpStream::connect_timeout(&resolved, remaining(deadline)) {
                Ok(tcp) => {
                    let address = address.to_owned();
                    return Ok(Self { service, address, tcp, deadline, buffer: Vec::new() });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(match last {
            Some(error) => failed(&error),
            None => failed(&"the name has no address"),
        })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.tcp
            .set_write_timeout(Some(remaining(self.deadline)))
            .and_then(|()| self.tcp.write_all(bytes))
            .map_err(|error| self.failed(&error))
    }

    /// Exactly so many bytes.
    pub(crate) fn take(&mut self, count: usize) -> Result<Vec<u8>, Error> {
        if count > LONGEST {
            return Err(self.unexpected(&format!("{count} bytes announced")));
        }
        while self.buffer.len() < count {
            self.fill()?;
        }
        let rest = self.buffer.split_off(count);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// A line without its end.
    pub(crate) fn line(&mut self) -> Result<String, Error> {
        let end = loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                break end;
            }
            if self.buffer.len() > LONGEST {
                return Err(self.unexpected("a line without end"));
            }
            self.fill()?;
        };
        let line = self.take(end + 1)?;
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// A big-endian number of 32 bits that counts bytes, itself included or not as `own` says.
    pub(crate) fn length(&mut self, own: usize) -> Result<usize, Error> {
        let bytes = self.take(4)?;
        let number = bytes.iter().fold(0_usize, |number, &byte| (number << 8) | usize::from(byte));
        number.checked_sub(own).ok_or_else(|| self.unexpected("a length that is too small"))
    }

    /// The body of an HTTP answer whose status line was read.
    pub(crate) fn http_body(&mut self) -> Result<Vec<u8>, Error> {
        let mut length = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
        if let Some(length) = length {
            return self.take(length);
        }
        // Asked for by HTTP 1.0, the answer ends with the connection.
        loop {
            if !self.fill_or_end()? {
                return Ok(std::mem::take(&mut self.buffer));
            }
            if self.buffer.len() > LONGEST {
                return Err(self.unexpected("a page without end"));
            }
        }
    }

    /// The port of our end, which no other connection to the server has now.
    pub(crate) fn own_port(&self) -> u16 {
        self.tcp.local_addr().map_or(0, |address| address.port())
    }

    /// An error that shows what came instead of what was expected.
    pub(crate) fn unexpected(&self, what: &str) -> Error {
        let shown: String = what.chars().take(300).collect();
        no_answer(self.service, format!("unexpected answer from {}: {shown}", self.address))
    }

    fn fill(&mut self) -> Result<(), Error> {
        if self.fill_or_end()? { Ok(()) } else { Err(self.failed(&"it closed the connection")) }
    }

    /// Reads what is there; false at the end of the connection.
    fn fill_or_end(&mut self) -> Result<bool, Error> {
        let mut chunk = [0; 8192];
        let read = loop {
            let wait = self.tcp.set_read_timeout(Some(remaining(self.deadline)));
            match wait.and_then(|()| self.tcp.read(&mut chunk)) {
                // A signal, such as of a child's end, cuts a wait off that has a time-out.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|error| self.failed(&error))?,
            }
        };
        self.buffer.extend_from_slice(&chunk[..read]);
        // Bytes that trickle in do not prolong the deadline.
        if Instant::now() >= self.deadline {
            return Err(self.failed(&io::Error::from(io::ErrorKind::TimedOut)));
        }
        Ok(read > 0)
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Error {
        no_answer(self.service, format!("no answer from {}: {error}", self.address))
    }
}

/// Until the deadline, at least a millisecond: zero would mean forever.
fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

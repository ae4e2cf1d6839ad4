//! SOCKS5 (RFC 1928): no authentication, `CONNECT` only, names and addresses.

use std::net::IpAddr;
use std::rc::Rc;

use ringfence_model::gate::Via;
use ringfence_model::host::Host;
use ringfence_model::policy::network::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::prefixed::Prefixed;
use crate::state::{Denial, Flow, Gate};
use crate::{connect, first};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// What the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Fine = 0,
    Denied = 2,
    Failed = 4,
    NoSuchCommand = 7,
    NoSuchAddress = 8,
}

/// A reply. The address in it says nothing: where the gate is bound is nobody's business.
pub(crate) const fn reply(reply: Reply) -> [u8; 10] {
    [VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Why something is no SOCKS5.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocksError {
    #[error("this is version {0} of SOCKS, or none; version 5 is spoken here")]
    Version(u8),
    #[error("the client wants to authenticate; nobody does here")]
    Methods,
    #[error("command {0} is not done; only CONNECT is")]
    Command(u8),
    #[error("the request is not well-formed")]
    Shape,
    #[error("the request names no host")]
    Host(Vec<u8>),
}

impl SocksError {
    fn reply(&self) -> Option<Vec<u8>> {
        match self {
            // Version 4 has its own form of a refusal.
            Self::Version(4) => Some(vec![0, 91, 0, 0, 0, 0, 0, 0]),
            Self::Version(_) => None,
            Self::Methods => Some(vec![VERSION, NO_METHOD]),
            Self::Command(_) => Some(reply(Reply::NoSuchCommand).to_vec()),
            Self::Shape => Some(reply(Reply::NoSuchAddress).to_vec()),
            Self::Host(_) => Some(reply(Reply::NoSuchAddress).to_vec()),
        }
    }
}

/// Reads the greeting, and answers how long it is. `None`: more is needed.
pub(crate) fn read_greeting(bytes: &[u8]) -> Result<Option<usize>, SocksError> {
    match bytes {
        [] => Ok(None),
        [version, ..] if *version != VERSION => Err(SocksError::Version(*version)),
        [_] => Ok(None),
        [_, 0, ..] => Err(SocksError::Methods),
        [_, count, rest @ ..] => match rest.get(..usize::from(*count)) {
            None => Ok(None),
            Some(methods) if methods.contains(&NO_AUTHENTICATION) => Ok(Some(2 + methods.len())),
            Some(_) => Err(SocksError::Methods),
        },
    }
}

/// A request, and how long it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) length: usize,
}

/// Reads a request. `None`: more is needed.
pub(crate) fn read_request(bytes: &[u8]) -> Result<Option<Request>, SocksError> {
    let [version, command, reserved, kind, rest @ ..] = bytes else {
        return Ok(None);
    };
    if *version != VERSION {
        return Err(SocksError::Version(*version));
    }
    if *command != CONNECT {
        return Err(SocksError::Command(*command));
    }
    let length = match (kind, rest.first()) {
        (1, _) => 4,
        (4, _) => 16,
        (3, None) => return Ok(None),
        (3, Some(length)) => 1 + usize::from(*length),
        _ => return Err(SocksError::Shape),
    };
    if *reserved != 0 {
        return Err(SocksError::Shape);
    }
    let (Some(address), Some([high, low])) = (rest.get(..length), rest.get(length..length + 2))
    else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([*high, *low]);
    let host = match *kind {
        3 => read_name(&address[1..])?,
        _ => read_address(address)?,
    };
    if port == 0 {
        return Err(SocksError::Shape);
    }
    Ok(Some(Request {
        host,
        port,
        length: 4 + length + 2,
    }))
}

fn read_address(address: &[u8]) -> Result<Host, SocksError> {
    let address = match *address {
        [a, b, c, d] => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(<[u8; 16]>::try_from(address).map_err(|_| SocksError::Shape)?),
    };
    Ok(Host::address(address))
}

/// HOSTILE: a name with a NUL, a space or a bracket in it is no host.
fn read_name(name: &[u8]) -> Result<Host, SocksError> {
    let text = std::str::from_utf8(name).ok();
    text.and_then(|text| Host::parse(text).ok())
        .ok_or_else(|| SocksError::Host(name.to_vec()))
}

pub(crate) async fn serve(gate: Rc<Gate>, stream: TcpStream) {
    let mut client = Prefixed::new(stream);
    let talking = tokio::time::timeout(first::FIRST_TIME, talk(&mut client));
    let request = match talking.await {
        Ok(Ok(Some(request))) => request,
        Ok(Ok(None)) | Err(_) => return,
        Ok(Err(error)) => return malformed(&gate, client, &error).await,
    };
    let flow = Flow {
        host: gate.names.meant(request.host),
        port: request.port,
        via: Via::Socks,
        gate,
    };
    connect::serve(flow, client).await;
}

/// Reads greeting and request. `None`: the client went away.
async fn talk(client: &mut Prefixed) -> Result<Option<Request>, SocksError> {
    let Some(length) = read_with(client, read_greeting).await? else {
        return Ok(None);
    };
    client.prefix.drain(..length);
    let chosen = [VERSION, NO_AUTHENTICATION];
    if client.stream.write_all(&chosen).await.is_err() {
        return Ok(None);
    }
    let Some(request) = read_with(client, read_request).await? else {
        return Ok(None);
    };
    client.prefix.drain(..request.length);
    Ok(Some(request))
}

async fn read_with<T>(
    client: &mut Prefixed,
    read: impl Fn(&[u8]) -> Result<Option<T>, SocksError>,
) -> Result<Option<T>, SocksError> {
    loop {
        if let Some(read) = read(&client.prefix)? {
            return Ok(Some(read));
        }
        if !matches!(first::more(client).await, Ok(1..)) {
            return Ok(None);
        }
    }
}

async fn malformed(gate: &Rc<Gate>, mut client: Prefixed, error: &SocksError) {
    let host = match error {
        SocksError::Host(host) => host.clone(),
        _ => Vec::new(),
    };
    let denial = Denial::plain(Reason::Malformed, error.to_string());
    gate.tell(denial.of_unread(Via::Socks, &host)).await;
    if let Some(reply) = error.reply() {
        connect::say(&mut client, &reply).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_whole_or_there_is_more_to_come() {
        let name = [&[5, 1, 0, 3, 6][..], b"a.test", &[1, 187]].concat();
        let four = [5, 1, 0, 1, 127, 0, 0, 1, 0, 80];
        for (bytes, host, port) in [(&name[..], "a.test", 443), (&four[..], "127.0.0.1", 80)] {
            for end in 0..bytes.len() {
                assert_eq!(read_request(&bytes[..end]), Ok(None), "{end}");
            }
            let request = Request {
                host: Host::parse(host).unwrap(),
                port,
                length: bytes.len(),
            };
            assert_eq!(read_request(bytes), Ok(Some(request)));
        }
        // A mapped address is the address that it is.
        let mapped = [
            5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1, 0, 80,
        ];
        let read = read_request(&mapped).unwrap().unwrap();
        assert_eq!(read.host, Host::parse("10.0.0.1").unwrap());
    }

    #[test]
    fn what_is_not_as_it_is_written_is_refused() {
        for (bytes, error) in [
            (&[4, 1, 0, 80][..], SocksError::Version(4)),
            (&[5, 2, 0, 1], SocksError::Command(2)),
            (&[5, 1, 1, 1], SocksError::Shape),
            (&[5, 1, 0, 2, 0], SocksError::Shape),
            (&[5, 1, 0, 1, 1, 2, 3, 4, 0, 0], SocksError::Shape),
        ] {
            assert_eq!(read_request(bytes), Err(error), "{bytes:?}");
        }
        assert_eq!(read_greeting(&[5, 2, 1]), Ok(None));
        assert_eq!(read_greeting(&[5, 2, 1, 0, 9]), Ok(Some(4)));
        assert_eq!(read_greeting(&[5, 2, 1, 2]), Err(SocksError::Methods));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_greeting(&bytes);
            let _ = read_request(&bytes);
            let _ = read_request(&[&[5, 1, 0, 3][..], &bytes].concat());
        }

        /// What rules see and what is looked up is one value: its text reads as itself, and nothing
        /// that a resolver would take for something else gets so far.
        #[test]
        fn matcher_and_dialler_see_the_same_host(name in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = vec![5, 1, 0, 3, name.len() as u8];
            bytes.extend_from_slice(&name);
            bytes.extend_from_slice(&[0, 80]);
            if let Ok(Some(request)) = read_request(&bytes) {
                let text = request.host.to_string();
                prop_assert_eq!(Host::parse(&text), Ok(request.host));
                prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}

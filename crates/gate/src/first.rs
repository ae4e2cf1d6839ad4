//! The first bytes of a connection: TLS, a request, or neither.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use crate::hello::{self, Hello, HelloError};
use crate::prefixed::Prefixed;

/// BOUND: how long the first bytes may take, all together. What is not known by then is refused,
/// never passed on unread.
pub(crate) const FIRST_TIME: Duration = Duration::from_secs(30);
/// BOUND: the longest method that is taken for one.
const MAX_METHOD: usize = 20;

/// What a connection begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First {
    Tls(Hello),
    /// A method and a space: whether it is a request is seen later.
    Request,
}

/// Why the beginning of a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FirstError {
    #[error("what was sent is neither HTTP nor TLS")]
    Neither,
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error("the first bytes took longer than {} seconds", FIRST_TIME.as_secs())]
    Late,
    /// The client went away before it said anything; nothing needs to be said of it.
    #[error("the client sent nothing")]
    Nothing,
}

/// What bytes are. `None`: more are needed.
pub(crate) fn tell(bytes: &[u8]) -> Result<Option<First>, FirstError> {
    match bytes.first() {
        None => Ok(None),
        Some(&hello::HANDSHAKE) => Ok(hello::read(bytes)?.map(First::Tls)),
        Some(_) => {
            let letters = |byte: &&u8| byte.is_ascii_uppercase() || **byte == b'-';
            let length = bytes.iter().take_while(letters).count();
            match bytes.get(length) {
                _ if length > MAX_METHOD => Err(FirstError::Neither),
                None => Ok(None),
                Some(b' ') if length > 0 => Ok(Some(First::Request)),
                Some(_) => Err(FirstError::Neither),
            }
        }
    }
}

/// Reads until it is known what a connection is. What was read stays before the rest.
pub(crate) async fn read(client: &mut Prefixed) -> Result<First, FirstError> {
    let reading = async {
        loop {
            if let Some(first) = tell(&client.prefix)? {
                return Ok(first);
            }
            if !matches!(more(client).await, Ok(1..)) {
                return Err(if client.prefix.is_empty() {
                    FirstError::Nothing
                } else {
                    FirstError::Neither
                });
            }
        }
    };
    match tokio::time::timeout(FIRST_TIME, reading).await {
        Ok(first) => first,
        Err(_) if client.prefix.is_empty() => Err(FirstError::Nothing),
        Err(_) => Err(FirstError::Late),
    }
}

/// Reads what comes next behind what was read.
pub(crate) async fn more(client: &mut Prefixed) -> io::Result<usize> {
    client.prefix.reserve(2048);
    client.stream.read_buf(&mut client.prefix).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_hellos_are_told_from_the_rest() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"M-SEARCH *", b"PRI * HTTP/2.0"] {
            assert!(matches!(tell(bytes), Ok(Some(First::Request))), "{bytes:?}");
        }
        for bytes in [&b""[..], b"GE", b"\x16", b"\x16\x03\x01"] {
            assert!(matches!(tell(bytes), Ok(None)), "{bytes:?}");
        }
        for bytes in [
            &b" GET /"[..],
            b"get / HTTP/1.1",
            b"GET\t/",
            b"\r\nGET / HTTP/1.1",
            b"SSH-2.0-OpenSSH",
            b"\0",
            b"\x15\x03\x01",
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        ] {
            assert!(tell(bytes).is_err(), "{bytes:?}");
        }
    }

    /// A client and what the gate has of it.
    async fn pair() -> (tokio::net::TcpStream, Prefixed) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) =
            tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
        (client.unwrap(), Prefixed::new(accepted.unwrap().0))
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_or_too_little_is_not_waited_for() {
        use tokio::io::AsyncWriteExt;

        let (client, mut gates) = pair().await;
        assert!(matches!(read(&mut gates).await, Err(FirstError::Nothing)));
        drop(client);
        // net-038: a byte now and then.
        let (mut client, mut gates) = pair().await;
        let began = tokio::time::Instant::now();
        let dripping = async {
            for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
                .iter()
                .cycle()
            {
                if client.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        };
        let reading = async {
            let read = read(&mut gates).await;
            drop(gates);
            read
        };
        tokio::select! {
            read = reading => assert!(matches!(read, Err(FirstError::Late)), "{read:?}"),
            () = dripping => unreachable!("it goes on for ever"),
        }
        assert!(began.elapsed() <= FIRST_TIME + Duration::from_secs(1));
    }
}

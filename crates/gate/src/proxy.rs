//! The web proxy: `CONNECT host:port`, and requests in absolute form.

use std::rc::Rc;

use ringfence_model::gate::Via;
use ringfence_model::policy::network::Reason;
use tokio::net::TcpStream;

use crate::head::{self, Framing, HeadError, Place, RequestHead, Scheme, Target};
use crate::inspect::{self, Kind};
use crate::prefixed::Prefixed;
use crate::state::{Denial, Flow, Gate};
use crate::{connect, first, refusal};

/// What a client asks the proxy for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Connect(Place),
    Forward(Place),
}

/// Reads what the first request asks for.
pub(crate) fn read(head: &[u8]) -> Result<Asked, HeadError> {
    let head = RequestHead::parse(head)?;
    match head.target {
        // What follows belongs to the host; a body would belong to the proxy.
        Target::Place(_) if head.framing != Framing::None => Err(HeadError::Length),
        Target::Place(place) if place.port.is_some() => Ok(Asked::Connect(place)),
        Target::Url {
            scheme: Scheme::Http,
            place,
            ..
        } => Ok(Asked::Forward(place)),
        _ => Err(HeadError::Target),
    }
}

pub(crate) async fn serve(gate: Rc<Gate>, stream: TcpStream) {
    let mut client = Prefixed::new(stream);
    let reading = tokio::time::timeout(first::FIRST_TIME, read_head(&mut client));
    let end = match reading.await {
        Ok(Ok(Some(end))) => end,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => return malformed(&gate, client, &error.to_string()).await,
        Err(_) if client.prefix.is_empty() => return,
        Err(_) => return malformed(&gate, client, "the head took too long").await,
    };
    let asked = match read(&client.prefix[..end]) {
        Ok(asked) => asked,
        Err(error) => return malformed(&gate, client, &error.to_string()).await,
    };
    let (place, standard) = match &asked {
        Asked::Connect(place) => (place, 443),
        Asked::Forward(place) => (place, 80),
    };
    let flow = Flow {
        host: gate.names.meant(place.host.clone()),
        port: place.port.unwrap_or(standard),
        via: Via::Proxy,
        gate,
    };
    match asked {
        Asked::Connect(_) => {
            client.prefix.drain(..end);
            connect::serve(flow, client).await;
        }
        Asked::Forward(_) => inspect::web(flow, client, Kind::Forward).await,
    }
}

/// Reads a whole head, and answers where it ends. `None`: the client went away.
async fn read_head(client: &mut Prefixed) -> Result<Option<usize>, HeadError> {
    loop {
        if let Some(end) = head::end_of_head(&client.prefix)? {
            return Ok(Some(end));
        }
        // No request begins so: it need not be read to its end.
        if first::tell(&client.prefix).is_err() || client.prefix.first() == Some(&22) {
            return Err(HeadError::FirstLine);
        }
        if !matches!(first::more(client).await, Ok(1..)) {
            return Ok(None);
        }
    }
}

async fn malformed(gate: &Rc<Gate>, mut client: Prefixed, detail: &str) {
    let denial = Denial::plain(Reason::Malformed, detail);
    // HOSTILE: shown as it was asked for.
    let line = client.prefix.split(|byte| *byte == b'\r').next();
    let target = line.and_then(|line| line.split(|byte| *byte == b' ').nth(1));
    let target = target.unwrap_or_default();
    gate.tell(denial.of_unread(Via::Proxy, target)).await;
    connect::say(&mut client, &refusal::malformed(detail)).await;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringfence_model::host::Host;

    use super::*;

    #[test]
    fn a_proxy_is_asked_for_a_host_in_two_ways() {
        let place = |host, port| Place {
            host: Host::parse(host).unwrap(),
            port,
        };
        for (head, asked) in [
            (
                "CONNECT A.test:443 HTTP/1.1\r\n\r\n",
                Asked::Connect(place("a.test", Some(443))),
            ),
            (
                "CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n",
                Asked::Connect(place("::1", Some(443))),
            ),
            (
                "GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
                Asked::Forward(place("a.test", None)),
            ),
        ] {
            assert_eq!(read(head.as_bytes()), Ok(asked), "{head}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let head = [b"CONNECT ", &bytes[..], b" HTTP/1.1\r\n\r\n"].concat();
            if let Ok(Asked::Connect(place)) = read(&head) {
                prop_assert_eq!(Host::parse(&place.host.to_string()), Ok(place.host));
            }
        }

        #[test]
        fn matcher_and_dialler_see_the_same_host(target in "[a-zA-Z0-9.:@#%_\\[\\]-]{1,40}") {
            let head = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
            if let Ok(Asked::Connect(place)) = read(head.as_bytes()) {
                let port = place.port.expect("CONNECT has one");
                // The whole target is host and port, in the one way to write them.
                let shown = format!("{}:{port}", place.host);
                let lower = target.to_ascii_lowercase();
                let canonical = Place::parse(&shown);
                prop_assert_eq!(canonical.as_ref(), Some(&place));
                if let Host::Name(name) = &place.host {
                    prop_assert!(lower.starts_with(name.as_str()), "{} {}", lower, name);
                }
            }
        }
    }
}

//! Hellos, well-formed and not.

use proptest::prelude::*;

use super::*;

fn with_length(bytes: &[u8]) -> Vec<u8> {
    let mut all = (bytes.len() as u16).to_be_bytes().to_vec();
    all.extend_from_slice(bytes);
    all
}

fn server_name(name: &[u8]) -> Vec<u8> {
    let mut entry = vec![HOST_NAME];
    entry.extend_from_slice(&with_length(name));
    extension(SERVER_NAME, &with_length(&entry))
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    let mut all = kind.to_be_bytes().to_vec();
    all.extend_from_slice(&with_length(content));
    all
}

fn handshake(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend_from_slice(&with_length(extensions));
    let mut all = vec![CLIENT_HELLO, 0];
    all.extend_from_slice(&with_length(&body));
    all
}

/// The handshake in records of at most this size.
fn records(handshake: &[u8], size: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for part in handshake.chunks(size) {
        all.extend_from_slice(&[HANDSHAKE, 3, 1]);
        all.extend_from_slice(&with_length(part));
    }
    all
}

fn named(name: &[u8]) -> Vec<u8> {
    records(&handshake(&server_name(name)), MAX_RECORD)
}

#[test]
fn the_name_is_found_however_the_hello_is_cut() {
    let mut extensions = extension(21, &vec![0; 20_000]);
    extensions.extend_from_slice(&server_name(b"Allowed.Example"));
    let long = handshake(&extensions);
    let expected = Host::parse("allowed.example").ok();
    for size in [1, 2, 3, 100, MAX_RECORD] {
        let bytes = records(&long, size);
        let hello = read(&bytes);
        if bytes.len() > MAX_HELLO + 5 {
            continue;
        }
        let hello = hello.expect("it is a hello").expect("it is whole");
        assert_eq!(hello.server, expected, "{size}");
        assert_eq!(read(&bytes[..bytes.len() - 1]), Ok(None), "{size}");
    }
    let short = named(b"a.b");
    for end in 0..short.len() {
        assert_eq!(read(&short[..end]), Ok(None), "{end}");
    }
}

#[test]
fn what_servers_may_read_in_two_ways_is_refused() {
    let twice = [server_name(b"a.b"), server_name(b"c.d")].concat();
    assert_eq!(
        read(&records(&handshake(&twice), MAX_RECORD)),
        Err(HelloError::Shape)
    );
    for name in [
        &b"a.b\0c.d"[..],
        b"a.b.",
        b"",
        b"127.1",
        b"a b",
        "ⓛocalhost".as_bytes(),
    ] {
        assert_eq!(read(&named(name)), Err(HelloError::Name), "{name:?}");
    }
    let mut two = vec![HOST_NAME];
    two.extend_from_slice(&with_length(b"a.b"));
    let two = extension(SERVER_NAME, &with_length(&[two.clone(), two].concat()));
    assert_eq!(
        read(&records(&handshake(&two), MAX_RECORD)),
        Err(HelloError::Shape)
    );
}

#[test]
fn a_hello_without_a_name_has_none() {
    let hello = read(&records(&handshake(&[]), 100)).expect("it is a hello");
    assert_eq!(hello, Some(Hello { server: None }));
}

#[test]
fn other_bytes_are_no_hello() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        &[22, 2, 0, 0, 1],
        &[23, 3, 3, 0, 1, 0],
        &[22, 3, 3, 0, 1, 2],
        &[0x80, 0x2e, 1, 0, 2],
    ] {
        assert_eq!(read(bytes), Err(HelloError::NoHello), "{bytes:?}");
    }
    assert_eq!(read(&[22, 3, 1, 0, 0]), Err(HelloError::Shape));
    let endless = records(&[&[CLIENT_HELLO, 0xff, 0, 0][..], &[0; 100]].concat(), 50);
    assert_eq!(read(&endless), Err(HelloError::TooLong));
    // A byte a record: the records are the length, not the hello.
    let slow = records(&handshake(&extension(21, &[0; 20_000])), 1);
    assert_eq!(read(&slow[..=MAX_HELLO]), Err(HelloError::TooLong));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let _ = read(&records(&[&[CLIENT_HELLO, 0][..], &with_length(&bytes)].concat(), 64));
    }

    #[test]
    fn a_changed_hello_never_names_what_is_no_host(at in 0_usize..70, byte in any::<u8>()) {
        let mut bytes = named(b"allowed.example");
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(Some(Hello { server: Some(host) })) = read(&bytes) {
            prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
        }
    }
}

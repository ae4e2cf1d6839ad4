//! The name servers of the host, for a gate that may not read the list any more.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};

/// BOUND: the C library reads no more servers, and a list has some lines.
const MAX_SERVERS: usize = 3;
const MAX_LIST: u64 = 64 << 10;
/// The list, and the server where it names none; both as the C library has them.
const LIST: &str = "/etc/resolv.conf";
const USUAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const PORT: u16 = 53;

/// Those that the host has now.
pub(super) fn of_host() -> Vec<SocketAddr> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(LIST) {
        // Whatever was read until an error is as good as there is.
        file.take(MAX_LIST).read_to_end(&mut text).ok();
    }
    read(&String::from_utf8_lossy(&text))
}

/// Those that a list names. Addresses that belong to one network interface are left out.
fn read(text: &str) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let address = words
                .next()
                .filter(|key| *key == "nameserver")
                .and(words.next())?;
            Some(SocketAddr::new(address.parse().ok()?, PORT))
        })
        .take(MAX_SERVERS)
        .collect();
    if found.is_empty() {
        found.push(SocketAddr::new(USUAL, PORT));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_as_the_c_library_reads_them() {
        for (text, expected) in [
            ("", "127.0.0.1:53"),
            (
                "# nameserver 10.0.0.9\nnameserver\t10.0.0.1 # one\nsearch a.test\n",
                "10.0.0.1:53",
            ),
            (
                "nameserver ::1\nnameserver fe80::1%eth0\nnameserver 10.0.0.2",
                "[::1]:53 10.0.0.2:53",
            ),
            ("nameservers 10.0.0.1\nnameserver nonsense", "127.0.0.1:53"),
            (
                &"nameserver 10.0.0.1\n".repeat(9),
                "10.0.0.1:53 10.0.0.1:53 10.0.0.1:53",
            ),
        ] {
            let found: Vec<String> = read(text).iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), expected, "{text}");
        }
    }
}

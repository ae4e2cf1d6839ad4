//! The way to an engine: a socket of this machine, an address, or whatever `ssh` leads to.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// BOUND: a machine that is there answers at once.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// Where an engine answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// An engine of this machine, which can be shown directories of it.
    Local(PathBuf),
    /// Host and port, without encryption: a tunnel, or a network of the user's own.
    Tcp(String),
    Ssh(Remote),
}

/// Who `ssh` is asked to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    user: Option<String>,
    host: String,
    port: Option<u16>,
}

impl Way {
    /// As `DOCKER_HOST` and contexts have it.
    pub fn parse(at: &str) -> Option<Self> {
        let (kind, rest) = at.split_once("://")?;
        match kind {
            "unix" if rest.starts_with('/') => Some(Self::Local(PathBuf::from(rest))),
            "tcp" => {
                let (host, port) = rest.trim_end_matches('/').rsplit_once(':')?;
                let plain = is_name(host) && port.parse::<u16>().is_ok();
                plain.then(|| Self::Tcp(format!("{host}:{port}")))
            }
            "ssh" => Remote::parse(rest.trim_end_matches('/')).map(Self::Ssh),
            _ => None,
        }
    }

    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// A connection of its own. Whatever carries it, it is a socket that bytes go through.
    pub fn connect(&self) -> io::Result<UnixStream> {
        match self {
            Self::Local(path) => UnixStream::connect(path),
            // What is done with it is the same for every kind of stream socket.
            Self::Tcp(at) => {
                let mut last = io::ErrorKind::NotFound.into();
                let mut found = at.to_socket_addrs()?.map(|address| {
                    TcpStream::connect_timeout(&address, CONNECTED_WITHIN)
                        .map_err(|error| last = error)
                });
                let stream = found.find_map(Result::ok);
                drop(found);
                let stream = stream.ok_or(last)?;
                stream.set_nodelay(true)?;
                Ok(OwnedFd::from(stream).into())
            }
            Self::Ssh(remote) => remote.connect(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp://{at}"),
            Self::Ssh(remote) => {
                f.write_str("ssh://")?;
                if let Some(user) = &remote.user {
                    write!(f, "{user}@")?;
                }
                f.write_str(&remote.host)?;
                match remote.port {
                    Some(port) => write!(f, ":{port}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Remote {
    fn parse(text: &str) -> Option<Self> {
        let (user, at) = match text.split_once('@') {
            Some((user, at)) => (Some(user), at),
            None => (None, text),
        };
        let (host, port) = match at.split_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (at, None),
        };
        let plain = is_name(host) && user.is_none_or(is_name);
        plain.then(|| Self {
            user: user.map(str::to_owned),
            host: host.to_owned(),
            port,
        })
    }

    /// As the engine's own client does: its client over there joins our streams with its engine.
    fn connect(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        let mut ssh = Command::new("ssh");
        if let Some(user) = &self.user {
            ssh.args(["-l", user]);
        }
        if let Some(port) = self.port {
            ssh.args(["-p", &port.to_string()]);
        }
        let mut child = ssh
            // It has no terminal to ask at: an interrupt there is ours, and not its end.
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"])
            .process_group(0)
            .args(["--", &self.host, "docker", "system", "dial-stdio"])
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs))
            .spawn()?;
        // It ends with the connection.
        std::thread::spawn(move || child.wait());
        Ok(ours)
    }
}

/// INVARIANT: no word of a command line begins with a dash or has anything else that means something.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_read_as_it_is_written_and_no_other_is() {
        for at in [
            "unix:///run/docker.sock",
            "tcp://127.0.0.1:2375",
            "tcp://build.example:2375",
            "ssh://build",
            "ssh://me@build.example:2222",
        ] {
            let way = Way::parse(at).expect(at);
            assert_eq!(way.to_string(), at);
            assert_eq!(way.is_local(), at.starts_with("unix"));
        }
        for at in [
            "",
            "unix://relative",
            "tcp://-oProxyCommand=x:1",
            "tcp://host",
            "tcp://host:99999",
            "ssh://-oProxyCommand=x",
            "ssh://-l@host",
            "ssh://host:x",
            "ssh://a b",
            "ssh://host/some/path",
            "npipe:////./pipe/docker",
            "fd://",
            "context:gone",
        ] {
            assert_eq!(Way::parse(at), None, "{at}");
        }
    }
}

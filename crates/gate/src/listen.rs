//! Accepting connections from inside.

use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use ringfence_model::gate::{SocketKind, Want};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::state::Gate;

/// How long to wait when there are no descriptors for one more connection.
const RETRY_TIME: Duration = Duration::from_millis(50);

/// A listening socket of the inside.
pub(crate) async fn listener(gate: &Gate, address: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
    let want = Want {
        kind: SocketKind::Stream,
        address,
        port,
    };
    let socket = gate.guest.want(want).await?;
    TcpListener::from_std(socket.into())
}

/// Serves each connection that comes, as long as it is polled. Where all seats are taken, they wait
/// in the kernel.
pub(crate) async fn accept<F>(gate: Rc<Gate>, listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY_TIME).await;
            continue;
        };
        let Ok(seat) = gate.seats.clone().acquire_owned().await else {
            return;
        };
        let work = serve(stream);
        spawn_local(async move {
            work.await;
            drop(seat);
        });
    }
}

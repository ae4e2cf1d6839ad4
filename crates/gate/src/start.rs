//! How a gate begins and ends.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use ringfence_model::gate::{
    GATE_ADDRESS, MAX_LINE, NAME_PORT, Order, PROXY_PORT, SOCKS_PORT, SecretValue, Setup, Word,
    read_setup,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::{LocalSet, spawn_local};

use crate::guest::Guest;
use crate::inspect::Trust;
use crate::listen::{accept, listener};
use crate::names::Names;
use crate::state::Gate;
use crate::{ask, privileges, proxy, socks, syscalls, wall, words};

/// BOUND: how long connections have to end when the gate does.
const END_TIME: Duration = Duration::from_secs(2);

/// The hidden subcommand: standard input is the engine, standard output the guest.
pub fn run() -> io::Result<()> {
    wall::hide()?;
    let engine = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let guest = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let nothing = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;

    let mut engine = UnixStream::from(engine);
    let (mut setup, values) = read_setup(&mut engine)?;
    let mut trust = Trust::default();
    if privileges::is_root() {
        privileges::hand_over_cache(&mut setup);
        trust.read_own(&setup);
    }
    wall::raise(&setup)?;
    privileges::give_up()?;
    // Another id makes a process dumpable or not as the machine is set up.
    wall::hide()?;
    syscalls::restrict().map_err(io::Error::other)?;
    go_on(engine, guest, setup, values, trust)
}

/// Serves one sandbox until the engine says so or is gone.
pub fn serve(mut engine: UnixStream, guest: OwnedFd) -> io::Result<()> {
    let (setup, values) = read_setup(&mut engine)?;
    go_on(engine, guest, setup, values, Trust::default())
}

fn go_on(
    engine: UnixStream,
    guest: OwnedFd,
    setup: Setup,
    values: Vec<SecretValue>,
    trust: Trust,
) -> io::Result<()> {
    engine.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, drive(engine, guest, setup, values, trust));
    // A look-up that hangs must not hold up the end.
    runtime.shutdown_background();
    result
}

async fn drive(
    engine: UnixStream,
    guest: OwnedFd,
    setup: Setup,
    values: Vec<SecretValue>,
    trust: Trust,
) -> io::Result<()> {
    let engine = tokio::net::UnixStream::from_std(engine)?;
    let (orders, to_engine) = engine.into_split();
    let (words, queue) = words::queue();
    let gate = Rc::new(Gate::new(setup, values, trust, words, Guest::new(guest)?)?);
    let writer = spawn_local(queue.write_to(to_engine));
    let counter = spawn_local({
        let gate = gate.clone();
        async move { gate.words.keep_counting().await }
    });
    let authority = gate.inspect.authority();
    gate.words.say(Word::Ready { authority }).await;
    let mut listening = spawn_local(listen(gate.clone()));

    let ended = tokio::select! {
        ended = obey(&gate, orders) => ended,
        // Without its sockets a gate is none; the engine sees that it went.
        Ok(Err(error)) = &mut listening => Err(error),
    };
    listening.abort();
    gate.open.close_all();
    tokio::time::timeout(END_TIME, gate.open.emptied())
        .await
        .ok();
    counter.abort();
    if ended? == Ended::Asked {
        gate.words.say_counted().await;
        gate.words.say(Word::Ended).await;
        return writer.await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// Answers inside, as soon as there is a guest.
async fn listen(gate: Rc<Gate>) -> io::Result<()> {
    let Sockets { datagrams, streams } = sockets(&gate).await?;
    gate.words.say(Word::Listening).await;
    let [names, proxy, socks] = streams;
    let serve_names = |stream| ask::serve_stream(gate.clone(), stream);
    let serve_proxy = |stream| proxy::serve(gate.clone(), stream);
    let serve_socks = |stream| socks::serve(gate.clone(), stream);
    tokio::join!(
        ask::serve_datagrams(gate.clone(), datagrams),
        accept(gate.clone(), names, serve_names),
        accept(gate.clone(), proxy, serve_proxy),
        accept(gate.clone(), socks, serve_socks),
    );
    Ok(())
}

struct Sockets {
    datagrams: UdpSocket,
    /// Names, web proxy, SOCKS5.
    streams: [TcpListener; 3],
}

async fn sockets(gate: &Gate) -> io::Result<Sockets> {
    Ok(Sockets {
        datagrams: ask::datagrams(gate).await?,
        streams: [
            listener(gate, GATE_ADDRESS, NAME_PORT).await?,
            listener(gate, GATE_ADDRESS, PROXY_PORT).await?,
            listener(gate, GATE_ADDRESS, SOCKS_PORT).await?,
        ],
    })
}

#[derive(PartialEq, Eq)]
enum Ended {
    Asked,
    /// The engine is gone.
    Alone,
}

/// Reads orders until the last one.
async fn obey(gate: &Rc<Gate>, orders: impl tokio::io::AsyncRead + Unpin) -> io::Result<Ended> {
    let mut orders = BufReader::new(orders);
    loop {
        let mut line = Vec::new();
        let most = MAX_LINE as u64 + 1;
        (&mut orders)
            .take(most)
            .read_until(b'\n', &mut line)
            .await?;
        if line.is_empty() {
            return Ok(Ended::Alone);
        }
        match serde_json::from_slice(&line)? {
            Order::Rules { rules } => {
                let closed = gate.change(rules);
                Names::follow_rules(gate).await;
                gate.words.say(Word::Changed { closed }).await;
            }
            Order::NameServers { servers } => gate.resolver.use_servers(servers),
            Order::End => return Ok(Ended::Asked),
        }
    }
}

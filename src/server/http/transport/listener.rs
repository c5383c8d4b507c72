//! Connections: they are accepted, read within a time limit, and drained when the server ends.
//!
//! A client that closed its half of a connection may still wait for its answer or may be gone: both look alike until
//! something is sent. So the server sends `100 Continue` to a request whose response has not begun. Every client skips
//! it; if the client is gone, the connection breaks and the request is cancelled. A body that is cut off by the
//! client's end is an error at once. A client that is answered before its body was read may still be sending it:
//! closing the connection at once would reset it, and the answer might be lost. So incoming bytes are dropped for a
//! while first. Not here: the answers themselves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::Version;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tower_service::Service;

use super::address::{Listener, Registered};
use super::guarded_body::{BodyGuard, guarded};
use super::runtime::{MAX_BODY_BYTES, not_accepted};
use super::stream::ClientStream;
use super::tls::TlsFiles;
use crate::http::proxies::Peer;

/// Maximum time for the rest of a received body to reach its reader.
const GRACE: Duration = Duration::from_millis(250);

/// Number of bytes of an answer that a client which keeps the server waiting has to take within the time limit of writing.
const PROGRESS: usize = 64 << 10;

/// Maximum number of bytes of a body that are dropped after its answer.
const MAX_DROPPED: usize = 2 * MAX_BODY_BYTES;

/// Connections that may wait to be accepted; the system may allow fewer (Linux: `somaxconn`). A client that finds no place
/// tries again after a second.
#[cfg(unix)]
const BACKLOG: i32 = 4096;

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Maximum time for the head of a request, the first or a later one.
    pub read: Duration,
    /// Maximum time without progress in writing an answer, because the client does not read.
    pub write: Duration,
}

/// Serves connections until something is sent to `stop`, then lets running requests finish. A connection ends if one of
/// the times is exceeded. Those over TCP use TLS, if there is a certificate; sockets in the file system do not.
pub fn serve(
    listeners: Vec<Listener>,
    tls: Option<Arc<TlsFiles>>,
    app: Router,
    times: ConnectionTimeouts,
    stop: oneshot::Receiver<()>,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(async move {
        let (stopping, stopped) = watch::channel(false);
        let mut all = JoinSet::new();
        for listener in &listeners {
            let socket = listener.registered()?;
            #[cfg(unix)]
            if let Registered::Tcp(socket) = &socket
                && let Err(error) = rustix::net::listen(socket, BACKLOG)
            {
                tracing::warn!(%error, "fewer connections than usual may wait to be accepted");
            }
            let tls = tls.clone().filter(|_| matches!(socket, Registered::Tcp(_)));
            all.spawn(accept(socket, tls, app.clone(), times, stopped.clone()));
        }
        // A sender that is gone also means the end.
        let _ = stop.await;
        // No socket of these is open any more, so that clients see at once that nobody listens.
        drop(listeners);
        let _ = stopping.send(true);
        while all.join_next().await.is_some() {}
        Ok(())
    })
}

/// Accepts connections of one socket until the server stops, and serves them to their end.
async fn accept(
    socket: Registered,
    tls: Option<Arc<TlsFiles>>,
    app: Router,
    times: ConnectionTimeouts,
    stopped: watch::Receiver<bool>,
) {
    let (mut connections, mut stop) = (JoinSet::new(), stopped.clone());
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok(stream) => {
                    let connection = connection(stream, tls.clone(), app.clone(), times, stopped.clone());
                    connections.spawn(connection);
                }
                Err(error) => not_accepted(&error).await,
            },
            Some(_) = connections.join_next() => {}
            () = stopping(&mut stop) => break,
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: ClientStream,
    tls: Option<Arc<TlsFiles>>,
    app: Router,
    times: ConnectionTimeouts,
    mut stopped: watch::Receiver<bool>,
) {
    let state = Arc::new(ConnectionState {
        is_plain: tls.is_none(),
        peer: stream.peer(),
        ..ConnectionState::default()
    });
    let wire = ClientSocket::new(stream, Arc::clone(&state), times.write);
    let stream = Arc::clone(&wire.stream);
    match tls {
        None => exchange(wire, &state, app, times, &mut stopped).await,
        Some(tls) => {
            // A handshake that fails is the client's matter.
            let encrypted = tokio::time::timeout(times.read, tls.acceptor().accept(wire));
            let encrypted = tokio::select! {
                encrypted = encrypted => encrypted,
                () = stopping(&mut stopped) => return,
            };
            let Ok(Ok(encrypted)) = encrypted else {
                return;
            };
            state.has_sent.store(false, Ordering::Release);
            exchange(encrypted, &state, app, times, &mut stopped).await;
        }
    }
    let is_read = state.is_read.load(Ordering::Acquire);
    if !is_read && state.has_sent.load(Ordering::Acquire) {
        let dropped = tokio::time::timeout(times.read, drop_rest(stream));
        tokio::select! {
            _ = dropped => {}
            () = stopping(&mut stopped) => {}
        }
    }
}

/// Answers the requests of a connection.
async fn exchange(
    wire: impl AsyncRead + AsyncWrite + Unpin,
    state: &Arc<ConnectionState>,
    app: Router,
    times: ConnectionTimeouts,
    stopped: &mut watch::Receiver<bool>,
) {
    let of_service = Arc::clone(state);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let busy = BusyGuard::start(&of_service, request.version());
        let mut request = request.map(|body| {
            of_service
                .is_read
                .store(body.is_end_stream(), Ordering::Release);
            guarded(Body::new(body), ReadGuard(Arc::clone(&of_service)))
        });
        if let Some(peer) = of_service.peer {
            request.extensions_mut().insert(peer);
        }
        let response = app.clone().call(request);
        async move {
            let response = response.await;
            response.map(|response| response.map(|body| guarded(body, busy)))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.read)
        .serve_connection(TokioIo::new(wire), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        // Errors of a connection are the client's matter.
        _ = serving.as_mut() => {}
        () = stopping(stopped) => {
            if state.is_busy.load(Ordering::Acquire) {
                serving.as_mut().graceful_shutdown();
                let _ = serving.await;
            }
        }
    }
}

async fn stopping(stopped: &mut watch::Receiver<bool>) {
    // A closed channel also means that the server is stopping.
    let _ = stopped.wait_for(|is_stopping| *is_stopping).await;
}

/// Closes the sending half of a connection and drops incoming bytes.
async fn drop_rest(stream: Arc<ClientStream>) -> io::Result<()> {
    let Ok(mut stream) = Arc::try_unwrap(stream) else {
        return Ok(());
    };
    std::future::poll_fn(|cx| stream.poll_shutdown(cx)).await?;
    let (mut buffer, mut left) = (vec![0; 16 << 10], MAX_DROPPED);
    while left > 0 {
        stream.readable().await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => left = left.saturating_sub(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tells a connection when the body of its request was read to its end.
struct ReadGuard(Arc<ConnectionState>);

impl BodyGuard for ReadGuard {
    fn read(&mut self, _n_bytes: usize, is_end: bool) {
        if is_end {
            self.0.is_read.store(true, Ordering::Release);
        }
    }
}

/// Keeps a connection busy while its response is sent.
impl BodyGuard for BusyGuard {}

/// The state of a connection, shared by its service and its socket.
#[derive(Debug, Default)]
struct ConnectionState {
    /// Whether what is written to the socket is what the client reads: there is no TLS.
    is_plain: bool,
    peer: Option<Peer>,
    is_busy: AtomicBool,
    is_read: AtomicBool,
    /// Whether any byte was sent since the request began.
    has_sent: AtomicBool,
    /// Whether the client understands `100 Continue`.
    may_probe: AtomicBool,
    reader: AtomicWaker,
}

/// A running request. Dropping it marks the connection as idle.
struct BusyGuard(Arc<ConnectionState>);

impl BusyGuard {
    fn start(state: &Arc<ConnectionState>, version: Version) -> Self {
        let is_known = version == Version::HTTP_11 && state.is_plain;
        state.may_probe.store(is_known, Ordering::Release);
        state.has_sent.store(false, Ordering::Release);
        state.is_busy.store(true, Ordering::Release);
        Self(Arc::clone(state))
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
        self.0.reader.wake();
    }
}

type Broken = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// The socket of a connection, which detects that a client is gone.
struct ClientSocket {
    stream: Arc<ClientStream>,
    state: Arc<ConnectionState>,
    /// Whether the client has closed its sending half.
    has_ended: bool,
    broken: Option<Broken>,
    /// The time limit for reading the body, once the client has closed its half.
    grace: Option<Pin<Box<Sleep>>>,
    write_time: Duration,
    /// While the client takes less than is to be sent: the end of the time that it has to take more.
    stall: Option<Pin<Box<Sleep>>>,
    /// Number of bytes written in this time.
    n_written: usize,
}

impl ClientSocket {
    fn new(stream: ClientStream, state: Arc<ConnectionState>, write_time: Duration) -> Self {
        Self {
            stream: Arc::new(stream),
            state,
            has_ended: false,
            broken: None,
            grace: None,
            write_time,
            stall: None,
            n_written: 0,
        }
    }

    /// Waits until the client has kept the server waiting for too long, which breaks the connection.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stall = || Box::pin(tokio::time::sleep(self.write_time));
        let stall = self.stall.get_or_insert_with(stall);
        ready!(stall.as_mut().poll(cx));
        tracing::info!(target: "server", limit = ?self.write_time, "a client does not read its answer; its connection ends");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Notes that `n` of `asked` bytes were written.
    fn progress(&mut self, n: usize, asked: usize) {
        self.n_written += n;
        if n == asked || self.n_written >= PROGRESS {
            (self.stall, self.n_written) = (None, 0);
        }
    }

    /// Waits for the end of the running request, once the client has closed its half.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.reader.register(cx.waker());
        if !self.state.is_busy.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        if !self.state.is_read.load(Ordering::Acquire) {
            // Received bytes may not have reached the reader of the body yet.
            let grace = || Box::pin(tokio::time::sleep(GRACE));
            return self
                .grace
                .get_or_insert_with(grace)
                .as_mut()
                .poll(cx)
                .map(Ok);
        }
        let broken = self.broken.get_or_insert_with(|| {
            let state = &self.state;
            let may_probe = state.may_probe.load(Ordering::Acquire);
            if may_probe && !state.has_sent.load(Ordering::Acquire) {
                let _ = self.stream.try_write(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            let stream = Arc::clone(&self.stream);
            Box::pin(async move { stream.ready(Interest::ERROR).await.map(drop) })
        });
        ready!(broken.as_mut().poll(cx))?;
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.has_ended {
            ready!(this.stream.poll_read_ready(cx))?;
            match this.stream.try_read(buffer.initialize_unfilled()) {
                Ok(0) => this.has_ended = true,
                Ok(n) => {
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        this.poll_end(cx)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.state.has_sent.store(true, Ordering::Release);
        loop {
            match this.stream.poll_write_ready(cx) {
                Poll::Pending => return this.poll_stall(cx),
                Poll::Ready(ready) => ready?,
            }
            match this.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) => {
                    this.progress(n, bytes.len());
                    return Poll::Ready(Ok(n));
                }
                failed => return Poll::Ready(failed),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection is dropped next, which closes it.
        Poll::Ready(Ok(()))
    }
}

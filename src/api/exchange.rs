//! One request and its answer over the socket of an engine process.
//!
//! A connection has one request and is driven by whoever waits for the answer, without a task of its own: an event
//! wakes nobody else, and dropping the answer closes the connection, which cancels the request.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::response::Parts;
use futures_util::Stream;
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::runtime::Handle;

#[cfg(unix)]
type Socket = tokio::net::UnixStream;
#[cfg(not(unix))]
type Socket = tokio::net::TcpStream;

type Connection = http1::Connection<TokioIo<Socket>, Body>;

/// Connects to a socket whose events come to this runtime.
#[cfg(unix)]
pub(super) fn connect(path: &Path, runtime: &Handle) -> io::Result<Socket> {
    let socket = std::os::unix::net::UnixStream::connect(path)?;
    socket.set_nonblocking(true)?;
    let _entered = runtime.enter();
    Socket::from_std(socket)
}

#[cfg(not(unix))]
pub(super) fn connect(_path: &Path, _runtime: &Handle) -> io::Result<Socket> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A connection until it ends.
struct Driven(Option<Pin<Box<Connection>>>);

impl Driven {
    /// Reads and writes what there is.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(cx).is_ready()
        {
            // Its end is told to whoever waits for a response or its body.
            self.0 = None;
        }
    }
}

/// The body of an answer, as it comes.
pub(super) struct Answer {
    connection: Driven,
    body: Incoming,
}

/// Sends a request.
///
/// # Errors
/// The connection ends before there is the head of an answer.
pub(super) async fn exchange(
    socket: Socket,
    request: Request,
) -> Result<(Parts, Answer), hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let mut connection = Driven(Some(Box::pin(connection)));
    let mut response = std::pin::pin!(sender.send_request(request));
    let response = std::future::poll_fn(|cx| {
        connection.drive(cx);
        response.as_mut().poll(cx)
    });
    let (head, body) = response.await?.into_parts();
    Ok((head, Answer { connection, body }))
}

impl Answer {
    /// The next part; none after the end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        loop {
            self.connection.drive(cx);
            return match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => Poll::Ready(Some(Ok(data))),
                    // There are no trailers.
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            };
        }
    }

    /// The parts.
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, hyper::Error>> + Send {
        let parts = futures_util::stream::unfold(self, |mut answer| async {
            let part = answer.next().await?;
            Some((part, answer))
        });
        parts.boxed()
    }
}

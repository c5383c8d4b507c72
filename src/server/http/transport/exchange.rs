//! HTTP exchanges with an engine process over its socket.
//!
//! A connection carries one request at a time and is polled by the task that waits for the answer; it has no task of
//! its own. So an event wakes no other task, and dropping the answer closes the connection, which cancels the request.
//! After a complete answer the connection is kept for the next request.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::response::Parts;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::runtime::Handle;

use lab_base::util::lock::lock;

use super::socket::{self, EngineSocket};

type Connection = http1::Connection<TokioIo<EngineSocket>, Body>;

const MAX_IDLE: usize = 8;

/// The connections to a socket.
#[derive(Debug)]
pub struct ConnectionPool {
    socket: PathBuf,
    idle: Mutex<Vec<PooledConnection>>,
}

impl ConnectionPool {
    /// A pool for this socket, without connections yet.
    pub fn new(socket: PathBuf) -> Arc<Self> {
        let idle = Mutex::default();
        Arc::new(Self { socket, idle })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A connection without a request: an idle one, or a new one that is registered with this runtime.
    ///
    /// # Errors
    /// Nothing listens on the socket.
    pub async fn open(&self, runtime: &Handle) -> io::Result<PooledConnection> {
        while let Some(mut idle) = self.pop() {
            if idle.is_ready() {
                return Ok(idle);
            }
        }
        let socket = TokioIo::new(socket::connect(&self.socket, runtime)?);
        let (sender, connection) = http1::handshake(socket).await.map_err(io::Error::other)?;
        let connection = PolledConnection(Some(Box::pin(connection)));
        Ok(PooledConnection { sender, connection })
    }

    fn pop(&self) -> Option<PooledConnection> {
        lock(&self.idle).pop()
    }

    fn keep(&self, mut channel: PooledConnection) {
        if channel.is_ready() {
            let mut idle = lock(&self.idle);
            if idle.len() < MAX_IDLE {
                idle.push(channel);
            }
        }
    }
}

/// A connection that carries one request at a time.
#[derive(Debug)]
pub struct PooledConnection {
    sender: http1::SendRequest<Body>,
    connection: PolledConnection,
}

impl PooledConnection {
    /// Whether the connection is open and has no request.
    fn is_ready(&mut self) -> bool {
        self.connection
            .drive(&mut Context::from_waker(Waker::noop()));
        self.connection.0.is_some() && self.sender.is_ready()
    }
}

/// A connection; `None` after its end.
#[derive(Debug)]
struct PolledConnection(Option<Pin<Box<Connection>>>);

impl PolledConnection {
    /// Reads and writes what is possible without waiting.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(cx).is_ready()
        {
            // The receivers of a response or its body learn of the end by themselves.
            self.0 = None;
        }
    }
}

/// The body of an answer, received in parts.
pub struct AnswerBody {
    /// `None` after the end of the body.
    channel: Option<PooledConnection>,
    body: Incoming,
    connections: Arc<ConnectionPool>,
}

/// Sends a request on one of the connections.
///
/// # Errors
/// The connection ends before the head of an answer arrived.
pub fn send(
    connections: Arc<ConnectionPool>,
    mut channel: PooledConnection,
    request: Request,
) -> BoxFuture<'static, Result<(Parts, AnswerBody), hyper::Error>> {
    Box::pin(async move {
        let mut response = std::pin::pin!(channel.sender.send_request(request));
        let connection = &mut channel.connection;
        let response = std::future::poll_fn(|cx| {
            connection.drive(cx);
            response.as_mut().poll(cx)
        });
        let (head, body) = response.await?.into_parts();
        let channel = Some(channel);
        Ok((
            head,
            AnswerBody {
                channel,
                body,
                connections,
            },
        ))
    })
}

impl AnswerBody {
    /// The next part of the body; `None` after its end.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        loop {
            if let Some(channel) = &mut self.channel {
                channel.connection.drive(cx);
            }
            return match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => Poll::Ready(Some(Ok(data))),
                    // A frame that is not data: there are no trailers.
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    if let Some(channel) = self.channel.take() {
                        self.connections.keep(channel);
                    }
                    Poll::Ready(None)
                }
                Poll::Pending => Poll::Pending,
            };
        }
    }

    /// The parts of the body as a stream.
    pub fn into_stream(self) -> BoxStream<'static, Result<Bytes, hyper::Error>> {
        let parts = futures_util::stream::unfold(self, |mut answer| async {
            let part = answer.next().await?;
            Some((part, answer))
        });
        parts.boxed()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use tempfile::TempDir;

    use super::*;

    /// Answers each request of a connection with `answer` and counts the connections. A 503 ends its connection, with
    /// or without a header that says so.
    fn serve(listener: &UnixListener, answer: &'static [u8], n: &Arc<Mutex<usize>>) {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            *n.lock().expect("not poisoned") += 1;
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while stream.read_exact(&mut byte).is_ok() {
                    head.extend(byte);
                    if head.ends_with(b"\r\n\r\n")
                        && (stream.write_all(answer).is_err()
                            || answer.starts_with(b"HTTP/1.1 503"))
                    {
                        return;
                    }
                }
            });
        }
    }

    async fn started(connections: &Arc<ConnectionPool>) -> AnswerBody {
        let channel = connections.open(&Handle::current()).await.expect("listens");
        let mut request = Request::new(Body::empty());
        let host = axum::http::HeaderValue::from_static("localhost");
        request.headers_mut().insert("host", host);
        let exchanged = send(Arc::clone(connections), channel, request).await;
        exchanged.expect("answered").1
    }

    async fn read(connections: &Arc<ConnectionPool>) -> usize {
        let mut answer = started(connections).await;
        let mut n = 0;
        while let Some(part) = answer.next().await {
            n += part.expect("a part").len();
        }
        n
    }

    /// A socket whose requests get this answer, and the number of its connections so far.
    fn served(answer: &'static [u8]) -> (TempDir, Arc<ConnectionPool>, Arc<Mutex<usize>>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let n = Arc::new(Mutex::new(0));
        let listener = UnixListener::bind(&path).expect("a socket");
        let counted = Arc::clone(&n);
        std::thread::spawn(move || serve(&listener, answer, &counted));
        (folder, ConnectionPool::new(path), n)
    }

    /// The number of connections that three requests need. If `drops`, the second is cancelled before its answer is
    /// read.
    async fn n_connections(answer: &'static [u8], drops: bool) -> usize {
        let (_folder, connections, n) = served(answer);
        assert_eq!(read(&connections).await, 2);
        if drops {
            drop(started(&connections).await);
        } else {
            assert_eq!(read(&connections).await, 2);
        }
        assert_eq!(read(&connections).await, 2);
        *n.lock().expect("not poisoned")
    }

    #[tokio::test]
    async fn a_connection_is_kept_after_a_whole_answer_alone() {
        let kept = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        assert_eq!(n_connections(kept, false).await, 1);
        assert_eq!(n_connections(kept, true).await, 2);
        let closed = b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
        assert_eq!(n_connections(closed, false).await, 3);
    }

    #[tokio::test]
    async fn an_idle_connection_that_ends_is_not_used() {
        let answer = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nno";
        let (_folder, connections, n) = served(answer);
        assert_eq!(read(&connections).await, 2);
        // The end may be noticed before the connection is kept.
        if let Some(mut idle) = connections.pop() {
            while idle.is_ready() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            let mut kept = connections.idle.lock().expect("not poisoned");
            kept.push(idle);
        }
        assert_eq!(read(&connections).await, 2);
        assert_eq!(*n.lock().expect("not poisoned"), 2);
    }
}

//! The Unix-domain socket between the server and an engine process: its connections, and the engine process's side.
//!
//! Such a socket reports space for writing whenever its peer has read. A thread that sends a stream of tokens would be
//! woken once more for each of them, while all cores compute. So a connection asks for these reports only while it has
//! no space. Not here: requests and answers (`exchange`).

use std::io;
use std::path::{Path, PathBuf};

use axum::Router;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

#[cfg(unix)]
pub(crate) use unix::EngineSocket;

/// Connections to other processes, for systems without such sockets.
#[cfg(not(unix))]
pub(crate) type EngineSocket = tokio::net::TcpStream;

/// Connects to a socket and registers the connection with this runtime.
pub(super) fn connect(path: &Path, runtime: &Handle) -> io::Result<EngineSocket> {
    #[cfg(unix)]
    return unix::connect(path, runtime);
    #[cfg(not(unix))]
    {
        let _ = (path, runtime);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Serves a router on a socket, forever. Calls `ready` when clients can connect.
///
/// # Errors
/// The socket cannot be created, the system has no such sockets, or `ready` fails.
pub fn serve_socket(
    path: PathBuf,
    app: Router,
    ready: Box<dyn FnOnce() -> io::Result<()> + Send>,
) -> BoxFuture<'static, io::Result<()>> {
    #[cfg(unix)]
    return Box::pin(unix::serve(path, app, ready));
    #[cfg(not(unix))]
    {
        drop((path, app, ready));
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use axum::Router;
    use axum::body::Body;
    use hyper::Request;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use rustix::io::Errno;
    use rustix::net::Shutdown;
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio::net::UnixListener;
    use tokio::net::unix::pipe::{Receiver, Sender};
    use tokio::runtime::Handle;
    use tower_service::Service as _;

    /// A connection. Both halves are the same socket: the ends of a pipe are registered for one kind of report each.
    #[derive(Debug)]
    pub(crate) struct EngineSocket {
        receiver: Receiver,
        /// Waits for space for writing; only while there is none.
        sender: Option<Sender>,
    }

    impl EngineSocket {
        fn new(stream: UnixStream) -> io::Result<Self> {
            stream.set_nonblocking(true)?;
            let receiver = Receiver::from_owned_fd_unchecked(OwnedFd::from(stream))?;
            let sender = None;
            Ok(Self { receiver, sender })
        }
    }

    pub(super) fn connect(path: &Path, runtime: &Handle) -> io::Result<EngineSocket> {
        let stream = UnixStream::connect(path)?;
        let _entered = runtime.enter();
        EngineSocket::new(stream)
    }

    pub(super) async fn serve(
        path: PathBuf,
        app: Router,
        ready: Box<dyn FnOnce() -> io::Result<()> + Send>,
    ) -> io::Result<()> {
        let listener = UnixListener::bind(path)?;
        ready()?;
        loop {
            let accepted = listener.accept().await;
            match accepted.and_then(|(stream, _)| EngineSocket::new(stream.into_std()?)) {
                Ok(stream) => drop(tokio::spawn(connection(stream, app.clone()))),
                Err(error) => crate::http::transport::runtime::not_accepted(&error).await,
            }
        }
    }

    /// Serves one connection. Its end cancels the request.
    async fn connection(stream: EngineSocket, app: Router) {
        let service =
            service_fn(|request: Request<Incoming>| app.clone().call(request.map(Body::new)));
        let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // The server learns of the end by itself.
        let _ = serving.await;
    }

    impl AsyncRead for EngineSocket {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.receiver).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for EngineSocket {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let this = self.get_mut();
            let write = || rustix::io::write(&this.receiver, bytes);
            let sender = match &mut this.sender {
                Some(sender) => sender,
                none => match rustix::io::retry_on_intr(write) {
                    Err(Errno::AGAIN) => {
                        let own = this.receiver.as_fd().try_clone_to_owned()?;
                        none.insert(Sender::from_owned_fd_unchecked(own)?)
                    }
                    written => return Poll::Ready(written.map_err(Into::into)),
                },
            };
            let written = ready!(Pin::new(sender).poll_write(cx, bytes));
            this.sender = None;
            Poll::Ready(written)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            let end = rustix::net::shutdown(&self.receiver, Shutdown::Write);
            Poll::Ready(end.map_err(Into::into))
        }
    }

    #[cfg(test)]
    mod tests {
        use std::future::poll_fn;

        use super::*;

        #[tokio::test]
        async fn a_writer_without_space_waits_for_its_reader() {
            const N: usize = 4 << 20;
            let (one, other) = UnixStream::pair().expect("a pair");
            let mut writer = EngineSocket::new(one).expect("registered");
            let mut reader = EngineSocket::new(other).expect("registered");
            let writing = tokio::spawn(async move {
                let bytes: Vec<u8> = (0..N).map(|i| (i % 251) as u8).collect();
                let (mut rest, mut n_waits) = (&bytes[..], 0);
                while !rest.is_empty() {
                    let n = poll_fn(|cx| {
                        let polled = Pin::new(&mut writer).poll_write(cx, rest);
                        n_waits += usize::from(polled.is_pending());
                        polled
                    });
                    rest = &rest[n.await.expect("written")..];
                }
                assert!(n_waits > 0 && writer.sender.is_none());
                let end = poll_fn(|cx| Pin::new(&mut writer).poll_shutdown(cx));
                end.await.expect("it is open");
            });
            let (mut bytes, mut part) = (Vec::new(), vec![0; 64 << 10]);
            loop {
                let mut buffer = ReadBuf::new(&mut part);
                let read = poll_fn(|cx| Pin::new(&mut reader).poll_read(cx, &mut buffer));
                read.await.expect("read");
                if buffer.filled().is_empty() {
                    break;
                }
                bytes.extend_from_slice(buffer.filled());
            }
            writing.await.expect("no panic");
            assert_eq!(bytes.len(), N);
            let is_same = |(i, byte): (usize, &u8)| *byte == (i % 251) as u8;
            assert!(bytes.iter().enumerate().all(is_same));
        }
    }
}

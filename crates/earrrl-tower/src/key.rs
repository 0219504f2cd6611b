//! Keys that distinguish clients: an address, a header, a cookie, an extension, a path, or several
//! of them.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::HeaderName;
use http::header::COOKIE;
use http::request::Parts;
use smallvec::SmallVec;

use crate::ClientAddress;
use crate::address::ipv4_text;
use crate::bounded_key;
use crate::path::{PathPattern, Paths};

/// A way to read the client's key from a request.
///
/// A key may have any length: the layer passes its [`bounded_key`] to the engine.
///
/// ```
/// use earrrl_tower::{ClientAddress, key};
/// use http::HeaderName;
/// // A client is an address and an API key; both must be there.
/// let pair = (ClientAddress::default(), key::header(HeaderName::from_static("x-api-key")));
/// let tenant = key::by(|request| request.uri.host().map(str::to_owned));
/// # fn is_key(_: impl key::Key) {}
/// # is_key(pair);
/// # is_key(tenant);
/// ```
pub trait Key: Send + Sync + 'static {
    /// Appends the key of the request's client. Returns false if the request has none.
    ///
    /// ```
    /// use earrrl_tower::key::{Key, KeyBuffer, Method};
    /// let request = http::Request::new(()).into_parts().0;
    /// let mut key = KeyBuffer::default();
    /// assert!(Method.write(&request, &mut key));
    /// assert_eq!(key.as_bytes(), b"GET");
    /// ```
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool;

    /// Returns the address by which the key tells clients apart, if it does so. The layer logs a
    /// warning if the server does not supply the address of the connection (see [`peer_address`]), or
    /// if it seems to be that of a proxy that is not trusted.
    fn client_address(&self) -> Option<&ClientAddress> {
        None
    }

    /// Tells the key the paths of its rule ([`RequestRule::paths`](crate::RequestRule::paths)). Of a path that servers
    /// interpret in several ways, a key by path takes an interpretation that is one of them.
    fn restrict(&mut self, paths: &[PathPattern]) {
        let _ = paths;
    }
}

/// The buffer to which a key is written. Keys of up to 64 bytes need no allocation.
///
/// ```
/// use std::io::Write;
/// use earrrl_tower::key::KeyBuffer;
/// let mut key = KeyBuffer::default();
/// key.push(b"tenant-");
/// write!(key, "{}", 7)?;
/// assert_eq!(key.as_bytes(), b"tenant-7");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyBuffer(SmallVec<[u8; 64]>);

impl KeyBuffer {
    /// Appends bytes.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends the value that a request gives for a key, and returns true if it gives one: an empty value is as
    /// good as none, or a client could leave the value out without being treated as one that lacks it.
    #[inline]
    fn push_present(&mut self, value: Option<impl AsRef<[u8]>>) -> bool {
        let value = value.as_ref().map_or(&[][..], AsRef::as_ref);
        self.push(value);
        !value.is_empty()
    }

    /// Returns the bytes that were appended.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Replaces the key that begins at `start` by its [`bounded_key`](crate::bounded_key).
    #[inline]
    pub(crate) fn bound(&mut self, start: usize) {
        let key = &self.as_bytes()[start..];
        if !bounded_key::is_kept(key) {
            let shortened = bounded_key::shortened(key);
            self.truncate(start);
            self.push(&shortened);
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

impl Write for KeyBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The address of a connection, for servers that do not add it to the request's extensions
/// themselves, such as hyper. axum adds it with `into_make_service_with_connect_info`, and tonic
/// always does.
///
/// ```
/// use earrrl_tower::{PeerAddress, key::peer_address};
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddress("192.0.2.7".parse()?));
/// let (parts, ()) = request.into_parts();
/// assert_eq!(peer_address(&parts), "192.0.2.7".parse().ok());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

/// The target of a request as its client sent it, for frameworks whose requests are no [`http::Request`]: their targets
/// may be none that an [`http::Uri`] takes. Without it, the path of the request's URI is used.
///
/// ```
/// use earrrl_tower::key::{Key, KeyBuffer, RequestTarget, path};
/// let mut request = http::Request::new(()).into_parts().0;
/// request.extensions.insert(RequestTarget("/caf\u{e9}".into()));
/// let mut key = KeyBuffer::default();
/// assert!(path().write(&request, &mut key));
/// assert_eq!(key.as_bytes(), b"/caf%C3%A9");
/// ```
#[derive(Clone, Debug)]
pub struct RequestTarget(pub Bytes);

/// The target of a request without the prefix at which a proxy or another application serves this one. Rules with
/// [`paths`](crate::RequestRule::paths) apply to it as to the whole target.
#[derive(Clone, Debug)]
pub struct TargetBelow(pub Bytes);

/// Returns the target of a request, or the path of its URI.
pub(crate) fn target(request: &Parts) -> &[u8] {
    let target = request.extensions.get::<RequestTarget>();
    target.map_or(request.uri.path().as_bytes(), |target| &target.0)
}

/// Returns the address of the connection of a request. It is taken from the request's extensions: a
/// [`PeerAddress`], the types of axum and tonic, or a plain [`SocketAddr`].
///
/// ```
/// use earrrl_tower::key::peer_address;
/// use std::net::SocketAddr;
/// let mut request = http::Request::new(()).into_parts().0;
/// assert_eq!(peer_address(&request), None);
/// request.extensions.insert(SocketAddr::from(([192, 0, 2, 7], 4711)));
/// assert_eq!(peer_address(&request), Some([192, 0, 2, 7].into()));
/// ```
pub fn peer_address(request: &Parts) -> Option<IpAddr> {
    let extensions = &request.extensions;
    if let Some(PeerAddress(address)) = extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(socket)) =
        extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(socket.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(connection) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return connection.remote_addr().map(|socket| socket.ip());
    }
    extensions.get::<SocketAddr>().map(|socket| socket.ip())
}

impl Key for ClientAddress {
    fn client_address(&self) -> Option<&ClientAddress> {
        Some(self)
    }

    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        match self.resolve(peer_address(request), &request.headers) {
            Some(IpAddr::V4(client)) if self.client_prefixes().keeps_ipv4() => {
                let (text, len) = ipv4_text(client);
                key.push(&text[..len]);
                true
            }
            Some(client) => self.client_prefixes().write(client, key).is_ok(),
            None => false,
        }
    }
}

/// Returns a key that is the value of a header, such as an API key. If there are several headers
/// with this name, the first one that is not empty is used.
///
/// ```
/// use earrrl_tower::{RequestRule, key};
/// let name = http::HeaderName::from_static("x-api-key");
/// let rule = RequestRule::new("per-key", "gcra 10/s burst=50".parse()?, key::header(name));
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn header(name: HeaderName) -> impl Key {
    KeyWriter(move |request: &Parts, key: &mut KeyBuffer| {
        let mut values = request.headers.get_all(&name).into_iter();
        key.push_present(values.find(|value| !value.is_empty()))
    })
}

/// Returns a key that is the value of a cookie, as the client sent it.
///
/// ```
/// use earrrl_tower::{RequestRule, key};
/// let rule = RequestRule::new("per-session", "gcra 5/s burst=20".parse()?, key::cookie("session"));
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn cookie(name: impl Into<String>) -> impl Key {
    let name = name.into();
    KeyWriter(move |request: &Parts, key: &mut KeyBuffer| {
        let lines = request.headers.get_all(COOKIE).into_iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let mut values = pairs.filter_map(|pair| {
            let rest = pair.trim_ascii().strip_prefix(name.as_bytes())?;
            rest.strip_prefix(b"=")
        });
        key.push_present(values.find(|value| !value.is_empty()))
    })
}

/// Returns a key that a closure reads from an extension of the request, such as the user that an
/// outer layer has authenticated.
///
/// ```
/// use earrrl_tower::key;
/// #[derive(Clone)]
/// struct User { name: String }
/// let user = key::extension(|user: &User| user.name.clone());
/// # fn is_key(_: impl key::Key) {}
/// # is_key(user);
/// ```
pub fn extension<T, K, F>(read: F) -> impl Key
where
    T: Send + Sync + 'static,
    K: AsRef<[u8]>,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    by(move |request| request.extensions.get::<T>().map(&read))
}

/// A key that is the request's method.
///
/// ```
/// use earrrl_tower::{RequestRule, key};
/// let rule = RequestRule::new("per-method", "gcra 100/s burst=500".parse()?, key::Method);
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl Key for Method {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        key.push(request.method.as_str().as_bytes());
        true
    }
}

/// Returns a key that is the request's path: the same for all spellings that some server takes for the same path, such
/// as `/login`, `/LOGIN/` and `/%6cogin`, so that no client has a quota for each of them. A key by route, such as
/// `MatchedPath`, is better where the routes are known: `/users/1` and `/users/2` then count together.
///
/// ```
/// use earrrl_tower::{ClientAddress, RequestRule, key};
/// let key = (ClientAddress::default(), key::path());
/// let rule = RequestRule::new("per-path", "gcra 5/s burst=20".parse()?, key);
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn path() -> Path {
    Path::default()
}

/// The key that [`path`] returns.
#[derive(Clone, Debug, Default)]
pub struct Path {
    /// The paths of the rule; all if there are none.
    paths: Vec<PathPattern>,
}

impl Key for Path {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        let target = target(request);
        let others = Paths::TOLERANT.others(target);
        let normal = Paths::TOLERANT.normalize(target);
        key.push(others.key(&normal, |path| self.paths.iter().any(|one| one.is(path))));
        true
    }

    fn restrict(&mut self, paths: &[PathPattern]) {
        self.paths = paths.to_vec();
    }
}

/// A key that is the route which axum matched, such as `/users/{id}`. The layer must be added by
/// `Router::route_layer` or `Router::layer`.
///
/// ```
/// use earrrl_tower::{RequestRule, key};
/// let rule = RequestRule::new("per-route", "gcra 100/s burst=500".parse()?, key::MatchedPath);
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct MatchedPath;

#[cfg(feature = "axum")]
impl Key for MatchedPath {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        let path = request.extensions.get::<axum::extract::MatchedPath>();
        path.inspect(|path| key.push(path.as_str().as_bytes()))
            .is_some()
    }
}

/// The route of a request, among its extensions, for frameworks other than axum. Requests that match no route, which get
/// status 404, have the empty text in common.
#[derive(Clone, Debug)]
pub struct Route(pub String);

/// A key that is the [`Route`] of a request, or the route that axum matched.
pub(crate) struct RouteKey;

impl Key for RouteKey {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        let Some(Route(route)) = request.extensions.get() else {
            #[cfg(feature = "axum")]
            return MatchedPath.write(request, key);
            #[cfg(not(feature = "axum"))]
            return false;
        };
        key.push(route.as_bytes());
        true
    }
}

/// A key that is the same for every request, for a limit that all clients share.
///
/// ```
/// use earrrl_tower::{RequestRule, key};
/// let rule = RequestRule::new("all", "gcra 1000/s burst=2000".parse()?, key::Everyone);
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Everyone;

impl Key for Everyone {
    fn write(&self, _: &Parts, _: &mut KeyBuffer) -> bool {
        true
    }
}

/// Returns a key that a closure reads from the request.
///
/// ```
/// use earrrl_tower::{RequestRule, key};
/// let tenant = key::by(|request| request.uri.host().map(str::to_owned));
/// let rule = RequestRule::new("per-tenant", "gcra 100/s burst=500".parse()?, tenant);
/// # let _ = rule;
/// # Ok::<(), earrrl::RuleError>(())
/// ```
pub fn by<K, F>(read: F) -> impl Key
where
    K: AsRef<[u8]>,
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
{
    KeyWriter(move |request: &Parts, key: &mut KeyBuffer| key.push_present(read(request)))
}

/// A key that a closure writes.
pub(crate) struct KeyWriter<F>(pub(crate) F);

impl<F> Key for KeyWriter<F>
where
    F: Fn(&Parts, &mut KeyBuffer) -> bool + Send + Sync + 'static,
{
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        (self.0)(request, key)
    }
}

impl<K: Key + ?Sized> Key for Box<K> {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        (**self).write(request, key)
    }

    fn client_address(&self) -> Option<&ClientAddress> {
        (**self).client_address()
    }

    fn restrict(&mut self, paths: &[PathPattern]) {
        (**self).restrict(paths);
    }
}

/// The parts of a compound key that is known only at run time; a tuple of them has the same keys.
impl Key for Vec<Box<dyn Key>> {
    fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
        self.iter().all(|part| write_part(part, request, key))
    }

    fn client_address(&self) -> Option<&ClientAddress> {
        self.iter().find_map(|part| part.client_address())
    }

    fn restrict(&mut self, paths: &[PathPattern]) {
        self.iter_mut().for_each(|part| part.restrict(paths));
    }
}

/// Implements [`Key`] for tuples of keys. Each part is written after its length, as in
/// `9:192.0.2.7,5:alice,`, so that two different clients never share a key. A request must have all
/// parts.
macro_rules! tuples {
    ($($key:ident)*) => {
        #[allow(non_snake_case, reason = "a type's name is its place's")]
        impl<$($key: Key),*> Key for ($($key,)*) {
            fn write(&self, request: &Parts, key: &mut KeyBuffer) -> bool {
                let ($($key,)*) = self;
                $(write_part($key, request, key))&&*
            }

            fn client_address(&self) -> Option<&ClientAddress> {
                let ($($key,)*) = self;
                None$(.or_else(|| $key.client_address()))*
            }

            fn restrict(&mut self, paths: &[PathPattern]) {
                let ($($key,)*) = self;
                $($key.restrict(paths);)*
            }        }
    };
}

tuples!(A B);
tuples!(A B C);
tuples!(A B C D);

fn write_part(part: &impl Key, request: &Parts, key: &mut KeyBuffer) -> bool {
    let mut text = KeyBuffer::default();
    if !part.write(request, &mut text) {
        return false;
    }
    // Writing to memory does not fail.
    let _ = write!(key, "{}:", text.len());
    key.push(text.as_bytes());
    key.push(b",");
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Request};

    fn request(headers: &[(&'static str, &'static str)]) -> Parts {
        let mut parts = Request::new(()).into_parts().0;
        for (name, value) in headers {
            parts.headers.append(*name, HeaderValue::from_static(value));
        }
        parts
            .extensions
            .insert(PeerAddress("192.0.2.7".parse().unwrap()));
        parts
    }

    fn read(key: &impl Key, request: &Parts) -> Option<String> {
        let mut text = KeyBuffer::default();
        key.write(request, &mut text)
            .then(|| String::from_utf8_lossy(text.as_bytes()).into())
    }

    #[test]
    fn every_spelling_of_a_path_is_one_key() {
        let of = |key: &Path, target: &'static str| {
            let mut parts = request(&[]);
            parts.extensions.insert(RequestTarget(target.into()));
            read(key, &parts).unwrap()
        };
        for target in [
            "/login",
            "/LOGIN/",
            "/%6cogin?a=b",
            "/x/..%2flogin",
            "http://h/login",
            "/login\u{1}",
        ] {
            assert_eq!(of(&path(), target), "/login", "{target:?}");
        }
        assert_eq!(of(&path(), "/login.php/any"), "/any");
        let mut script = path();
        script.restrict(&["/login.php".parse().unwrap()]);
        assert_eq!(of(&script, "/login.php/any"), "/login.php");
        let uri = Request::get("/%4Cogin").body(()).unwrap().into_parts().0;
        assert_eq!(read(&path(), &uri), Some("/login".to_owned()));
    }

    #[test]
    fn an_empty_value_is_no_key() {
        let empty = request(&[("x-api-key", ""), ("cookie", "session=; a=1")]);
        let api_key = || header(HeaderName::from_static("x-api-key"));
        for key in [
            Box::new(api_key()) as Box<dyn Key>,
            Box::new(cookie("session")),
            Box::new(by(|_| Some(""))),
            Box::new(extension(|_: &PeerAddress| "")),
            Box::new((Method, api_key())),
        ] {
            assert_eq!(read(&key, &empty), None);
        }
        let later = request(&[
            ("x-api-key", ""),
            ("x-api-key", "k2"),
            ("cookie", "session=; session=s2"),
        ]);
        assert_eq!(read(&api_key(), &later), Some("k2".to_owned()));
        assert_eq!(read(&cookie("session"), &later), Some("s2".to_owned()));
        assert_eq!(read(&Everyone, &empty), Some(String::new()));
    }

    #[test]
    fn keys_are_read_from_requests() {
        let request = request(&[
            ("x-api-key", "k1"),
            ("x-api-key", "k2"),
            ("cookie", "a=1; session=s1;b=2"),
            ("cookie", "session=s2"),
        ]);
        let api_key = || header(HeaderName::from_static("x-api-key"));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read(&ClientAddress::default(), &request), some("192.0.2.7"));
        assert_eq!(read(&api_key(), &request), some("k1"));
        assert_eq!(
            read(&header(HeaderName::from_static("x-user")), &request),
            None
        );
        assert_eq!(read(&cookie("session"), &request), some("s1"));
        assert_eq!(read(&cookie("sess"), &request), None);
        assert_eq!(read(&Method, &request), some("GET"));
        assert_eq!(read(&Everyone, &request), some(""));
        assert_eq!(
            read(
                &by(|parts| parts.uri.path().get(..1).map(str::to_owned)),
                &request
            ),
            some("/")
        );
        assert_eq!(
            read(&(ClientAddress::default(), api_key(), Method), &request),
            some("9:192.0.2.7,2:k1,3:GET,")
        );
        assert_eq!(read(&(Method, cookie("none")), &request), None);
        let parts: Vec<Box<dyn Key>> = vec![
            Box::new(ClientAddress::default()),
            Box::new(api_key()),
            Box::new(Method),
        ];
        assert!(parts.client_address().is_some());
        assert_eq!(read(&parts, &request), some("9:192.0.2.7,2:k1,3:GET,"));
        assert_eq!(
            read(
                &extension(|peer: &PeerAddress| peer.0.to_string()),
                &request
            ),
            some("192.0.2.7")
        );
    }
}

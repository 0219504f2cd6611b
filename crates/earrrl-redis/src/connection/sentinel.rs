//! The search for the master that Sentinels name.

use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, RedisResult, TlsMode,
};

use crate::connection::fault::Fault;
use crate::options::{Options, tcp_settings, without_credentials};

/// Returns a client of the master with this name, which one of the Sentinels has named.
pub(crate) async fn master(name: &str, options: &Options) -> Result<Client, Fault> {
    let error = match sentinels(name, options, &options.urls)?
        .build()?
        .async_get_client()
        .await
    {
        Ok(client) => return Ok(client),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::MasterNameNotFoundBySentinel {
        let why = format!("the Sentinels have no reachable master of the name `{name}`");
        return Err(Fault::Lost(why));
    }
    if is_of_login(&error) {
        if let Some(fault) = refused_by_sentinel(name, options).await? {
            return Err(fault);
        }
        return Err(Fault::from(error).at(&format!("the master `{name}`")));
    }
    Err(Fault::from(error).at(&format!("the Sentinels or their master `{name}`")))
}

/// Returns the refusal of the first Sentinel that does not accept the user and the password.
async fn refused_by_sentinel(name: &str, options: &Options) -> RedisResult<Option<Fault>> {
    for url in &options.urls {
        let mut client = sentinels(name, options, std::slice::from_ref(url))?.build()?;
        match client.async_get_sentinel_client().await {
            Err(error) if is_of_login(&error) => {
                let place = format!("the Sentinel {}", without_credentials(url));
                let why = Fault::from(error).at(&place);
                let hint = "sentinel_user and sentinel_password are for Sentinels";
                return Ok(Some(Fault::Refused(format!("{}; {hint}", why.detail()))));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Returns true if a server wants another user or password.
fn is_of_login(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

/// Returns the settings of a client that asks the Sentinels at `urls` for the master with this
/// name.
fn sentinels(name: &str, options: &Options, urls: &[String]) -> RedisResult<SentinelClientBuilder> {
    let infos = urls.iter().map(|url| url.as_str().into_connection_info());
    let infos: Vec<_> = infos.collect::<RedisResult<_>>()?;
    let addresses: Vec<_> = infos.iter().map(|info| info.addr().clone()).collect();
    let tls = addresses
        .iter()
        .any(|address| matches!(address, ConnectionAddr::TcpTls { .. }));
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
        .set_client_to_redis_tcp_settings(tcp_settings());
    if let Some(settings) = infos.first().map(|info| info.redis_settings()) {
        builder = builder.set_client_to_redis_db(settings.db());
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
    }
    if let Some(user) = &options.sentinel_user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = &options.sentinel_password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    if tls {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    #[cfg(feature = "tls")]
    if let Some(certificates) = &options.certificates {
        builder = builder
            .set_client_to_redis_certificates(certificates.to_redis())
            .set_client_to_sentinel_certificates(certificates.to_redis());
    }
    Ok(builder)
}

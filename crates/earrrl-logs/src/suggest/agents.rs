//! The user agents of crawlers and monitors.

/// Substrings that identify the user agents of crawlers.
pub(super) const CRAWLERS: [&str; 7] = [
    "bot",
    "crawl",
    "spider",
    "slurp",
    "facebookexternalhit",
    "mediapartners",
    "preview",
];

/// Substrings that identify the user agents of monitoring services.
pub(super) const MONITORS: [&str; 11] = [
    "monitor",
    "uptime",
    "pingdom",
    "statuscake",
    "kube-probe",
    "healthcheck",
    "health-check",
    "blackbox",
    "nagios",
    "zabbix",
    "site24x7",
];

/// The beginnings of the user agents of libraries and tools with which programs are written.
const SCRIPTS: [&str; 12] = [
    "python",
    "curl/",
    "wget/",
    "go-http-client",
    "aiohttp",
    "httpx",
    "scrapy",
    "java/",
    "libwww-perl",
    "axios/",
    "node-fetch",
    "ruby",
];

/// Returns true if a user agent is that of a library or a tool with which programs are written. Those of apps, such as
/// OkHttp and CFNetwork, are none: many people have one.
pub(super) fn is_script(agent: &[u8]) -> bool {
    let starts = |name: &&str| {
        agent
            .get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
    };
    SCRIPTS.iter().any(starts)
}

/// Returns true if a user agent names a crawler or a monitor.
pub(super) fn is_declared(agent: &[u8]) -> bool {
    has_any(agent, &MONITORS) || has_any(agent, &CRAWLERS)
}

/// Returns true if a user agent is one of a browser. Programs that name themselves in the form of one are `compatible`,
/// as old versions of Internet Explorer were.
pub(super) fn is_browser(agent: &[u8]) -> bool {
    agent.starts_with(b"Mozilla/")
        && (has_any(agent, &["msie"]) || !has_any(agent, &["compatible;", "thunderbird"]))
}

/// Returns true if a text has one of these parts, in letters of either case.
pub(super) fn has_any(text: &[u8], parts: &[&str]) -> bool {
    let lower = text.to_ascii_lowercase();
    let has = |part: &&str| memchr::memmem::find(&lower, part.as_bytes()).is_some();
    parts.iter().any(has)
}

//! Grants of protocol extensions: signed client credentials (SEP-1046), and an identity provider that vouches (SEP-990).

use rmcp::transport::{
    ClientCredentialsConfig, CredentialStore, JwtSigningAlgorithm, StoredCredentials,
    auth::{
        AuthorizationMetadata, default_oauth_http_client,
        enterprise::{EmaAuthorizationServer, EmaClientAuthentication, EmaExchangeRequest},
    },
};
use serde_json::{Value, json};

use super::{OAuth, auth_error};
use crate::client::Error;

pub(super) struct IdentityProvider<'a> {
    pub(super) issuer: &'a str,
    pub(super) token_endpoint: &'a str,
    pub(super) client_id: &'a str,
    /// The identity token of the person.
    pub(super) id_token: &'a str,
}

/// Client credentials with a signed token instead of a secret.
pub(super) fn private_key(
    oauth: &OAuth,
    pem: &str,
    algorithm: &str,
    scopes: Vec<String>,
    resource: String,
) -> Result<ClientCredentialsConfig, Error> {
    let signing_algorithm = match algorithm {
        "RS256" => JwtSigningAlgorithm::RS256,
        "RS384" => JwtSigningAlgorithm::RS384,
        "RS512" => JwtSigningAlgorithm::RS512,
        "ES256" => JwtSigningAlgorithm::ES256,
        "ES384" => JwtSigningAlgorithm::ES384,
        _ => return Err(Error::Auth(format!("`{algorithm}` is no way to sign that is known here: ES256, ES384, RS256, RS384, RS512"))),
    };
    Ok(ClientCredentialsConfig::PrivateKeyJwt {
        client_id: oauth.settings.client_id.clone().unwrap_or_default(),
        signing_key: pem.as_bytes().to_vec(),
        signing_algorithm,
        token_endpoint_audience: None,
        scopes,
        resource: Some(resource),
    })
}

/// Exchanges the person's identity token at the provider, and the result at the authorization server for an access token.
pub(super) async fn by_enterprise(
    oauth: &OAuth,
    metadata: &AuthorizationMetadata,
    scopes: Vec<String>,
    resource: &str,
    provider: IdentityProvider<'_>,
) -> Result<(), Error> {
    let identity = oauth.configured_identity(metadata, String::new());
    let issuer = metadata.issuer.clone().ok_or_else(|| Error::Auth("the authorization server does not say who it is".to_owned()))?;
    let mut server = EmaAuthorizationServer::new(issuer, &metadata.token_endpoint, &identity.id);
    if let Some(secret) = &oauth.settings.client_secret {
        // The type of a secret is of a crate that we do not depend on, but it can be deserialized.
        let secret = serde_json::from_value(Value::String(secret.clone())).map_err(|error| Error::Auth(error.to_string()))?;
        server = server.with_client_authentication(if posts(metadata) {
            EmaClientAuthentication::ClientSecretPost(secret)
        } else {
            EmaClientAuthentication::ClientSecretBasic(secret)
        });
    }
    let vouching = EmaAuthorizationServer::new(provider.issuer, provider.token_endpoint, provider.client_id);
    let http = default_oauth_http_client().map_err(auth_error)?;
    let request = EmaExchangeRequest::new_with_id_token(vouching, server, resource, provider.id_token).with_scopes(scopes);
    let token = request.exchange(&http, &http).await.map_err(|error| Error::Auth(error.to_string()))?;

    let mut response = json!({"access_token": token.access_token.secret(), "token_type": "bearer"});
    if let Some(lifetime) = token.expires_in {
        response["expires_in"] = lifetime.as_secs().into();
    }
    let response = serde_json::from_value(response).map_err(|error| Error::Auth(error.to_string()))?;
    let credentials = StoredCredentials::new(identity.id.clone(), Some(response), token.scopes.into_iter().collect(), None);
    oauth.store.set_identity(Some(identity));
    oauth.store.save(credentials).await.map_err(auth_error)
}

/// Whether the authorization server accepts a secret in the body only.
fn posts(metadata: &AuthorizationMetadata) -> bool {
    let methods = metadata.additional_fields.get("token_endpoint_auth_methods_supported").and_then(Value::as_array);
    let has = |name: &str| methods.is_some_and(|methods| methods.iter().any(|method| method == name));
    has("client_secret_post") && !has("client_secret_basic")
}

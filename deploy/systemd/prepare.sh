#!/usr/bin/env bash
# Makes certificates, the cluster secret and the settings of three machines, each in a folder of its own.
# Usage: prepare.sh DIRECTORY MACHINE MACHINE MACHINE, where each MACHINE is a name that the machines resolve.
# LOGS="broker-a broker-b" names the logs of brokers, by default one, broker-a. A second run keeps existing files and adds
# missing ones: delete DIRECTORY/MACHINE/tls, for example, to issue that certificate again.
set -euo pipefail
umask 077
[ $# -eq 4 ] || { echo "usage: prepare.sh DIRECTORY MACHINE MACHINE MACHINE" >&2; exit 2; }
directory=$1; shift
machines=("$@")
read -ra logs <<<"${LOGS:-broker-a}"
services=(nameserver offset gateway)

different() { # NAME...: refuses a name that is given twice
  local twice
  twice=$(printf '%s\n' "$@" | sort | uniq -d | paste -sd ' ')
  [ -z "$twice" ] || { echo "prepare.sh: machines, logs and services need different names, two of them are: $twice" >&2; exit 2; }
}

different "${machines[@]}"
different "${logs[@]}" "${services[@]}"
mkdir -p "$directory"
cd "$directory"

quiet() { # COMMAND...: shows the command's output if it fails
  local output
  output=$("$@" 2>&1) || { echo "prepare.sh: $1 $2 failed: $output" >&2; exit 1; }
}

list() { # PORT: "machine:port" of each machine, as TOML
  printf '"%s:'"$1"'", ' "${machines[@]}" | sed 's/, $//'
}

authority() { # NAME: an authority that signs certificates
  [ ! -e "$1-ca.crt" ] || return 0
  quiet openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -subj "/CN=$1 authority" -keyout "$1-ca.key" -out new
  mv new "$1-ca.crt"
}

certificate() { # FOLDER AUTHORITY COMMON_NAME [NAME...]: a certificate for a year, with its key and its authority
  local folder=$1 authority=$2 name=$3 names
  shift 3
  [ ! -e "$folder/tls.crt" ] || return 0
  mkdir -p "$folder"
  names=$(printf 'DNS:%s,' "$@")
  cp "$authority-ca.crt" "$folder/ca.crt"
  quiet openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
    -keyout "$folder/tls.key" -out "$folder/request"
  quiet openssl x509 -req -in "$folder/request" -CA "$authority-ca.crt" -CAkey "$authority-ca.key" -days 365 \
    -set_serial "0x$(openssl rand -hex 16)" -out new \
    -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth"; [ $# = 0 ] || echo "subjectAltName=${names%,}")
  rm "$folder/request"
  mv new "$folder/tls.crt"
}

settings() { # FILE: standard input, unless the file exists
  cat >new
  [ -e "$1" ] || mv new "$1"
}

common() { # settings that all services share
  cat <<END
cluster = "rockoon"
tls = "mutual"
tls_certificate = "/etc/rockoon/tls/tls.crt"
tls_key = "/etc/rockoon/tls/tls.key"
tls_ca = "/etc/rockoon/tls/ca.crt"
access = "on"
cluster_secret_file = "/etc/rockoon/cluster-secret"
END
}

authority rockoon
authority etcd
if [ ! -e cluster-secret ]; then
  quiet openssl rand -base64 -out new 32
  mv new cluster-secret
fi

for machine in "${machines[@]}"; do
  # Callers dial the machine; nameservers and the other copies require the log's name.
  certificate "$machine/tls" rockoon "$machine" "$machine" "${logs[@]}" offset
  certificate "$machine/etcd" etcd etcd "$machine"
  certificate "$machine/etcd-client" etcd rockoon-nameserver
  settings "$machine/cluster-secret" <cluster-secret
  settings "$machine/client-secrets" </dev/null
  settings "$machine/etcd.env" <<END
ETCD_NAME=$machine
ETCD_DATA_DIR=/var/lib/rockoon/etcd
ETCD_LISTEN_CLIENT_URLS=https://0.0.0.0:2379
ETCD_ADVERTISE_CLIENT_URLS=https://$machine:2379
ETCD_LISTEN_PEER_URLS=https://0.0.0.0:2380
ETCD_INITIAL_ADVERTISE_PEER_URLS=https://$machine:2380
ETCD_INITIAL_CLUSTER=$(for each in "${machines[@]}"; do echo "$each=https://$each:2380"; done | paste -sd, -)
ETCD_INITIAL_CLUSTER_TOKEN=rockoon
# Read when the data directory is empty. With \`new\`, a member that has lost its directory refuses to start. \`existing\` is for
# the first start of a member that replaces a lost one.
ETCD_INITIAL_CLUSTER_STATE=new
ETCD_CERT_FILE=/etc/rockoon/etcd/tls.crt
ETCD_KEY_FILE=/etc/rockoon/etcd/tls.key
ETCD_TRUSTED_CA_FILE=/etc/rockoon/etcd/ca.crt
ETCD_CLIENT_CERT_AUTH=true
ETCD_PEER_CERT_FILE=/etc/rockoon/etcd/tls.crt
ETCD_PEER_KEY_FILE=/etc/rockoon/etcd/tls.key
ETCD_PEER_TRUSTED_CA_FILE=/etc/rockoon/etcd/ca.crt
ETCD_PEER_CLIENT_CERT_AUTH=true
# A nameserver's certificate has the same authority, and does not make it a member.
ETCD_PEER_CERT_ALLOWED_CN=etcd
ETCD_LOG_LEVEL=warn
ETCD_AUTO_COMPACTION_MODE=periodic
ETCD_AUTO_COMPACTION_RETENTION=1h
END
  settings "$machine/nameserver.toml" <<END
name = "$machine"
listen = "0.0.0.0:9876"
advertise = "$machine:9876"
etcd = [$(list 2379)]
etcd_version_check = "refuse"
etcd_tls = "on"
etcd_tls_ca = "/etc/rockoon/etcd-client/ca.crt"
etcd_tls_certificate = "/etc/rockoon/etcd-client/tls.crt"
etcd_tls_key = "/etc/rockoon/etcd-client/tls.key"
$(common)
END
  for log in "${logs[@]}"; do
    port=10911
    while grep -q "^listen = .*:$port\"" "$machine"/*.toml; do port=$((port + 10)); done
    settings "$machine/$log.toml" <<END
name = "$log"
copies = 3
replica = "$machine"
listen = "0.0.0.0:$port"
advertise = "$machine:$port"
nameservers = [$(list 9876)]
store_path = "/var/lib/rockoon/$log"
$(common)
END
  done
  settings "$machine/offset.toml" <<END
name = "offset"
copies = 3
replica = "$machine"
listen = "0.0.0.0:10912"
advertise = "$machine:10912"
nameservers = [$(list 9876)]
store_path = "/var/lib/rockoon/offset"
$(common)
END
  # RocketMQ's clients have no certificates: they are checked by their access keys.
  settings "$machine/gateway.toml" <<END
name = "$machine"
listen = "0.0.0.0:8081"
admin_listen = "0.0.0.0:8085"
admin_advertise = "$machine:8085"
nameservers = [$(list 9876)]
cluster_tls = "mutual"
client_secrets = "/etc/rockoon/client-secrets"
$(common | sed 's/^tls = .*/tls = "on"/')
END
  # For the command `rockoon` on the machine.
  settings "$machine/profile.sh" <<END
export PATH=\$PATH:/opt/rockoon/bin
export ROCKOON_NAMESERVERS=$(printf '%s:9876\n' "${machines[@]}" | paste -sd, -)
export ROCKOON_TLS_CA=/etc/rockoon/tls/ca.crt ROCKOON_TLS_CERTIFICATE=/etc/rockoon/tls/tls.crt ROCKOON_TLS_KEY=/etc/rockoon/tls/tls.key
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=$(printf 'https://%s:2379\n' "${machines[@]}" | paste -sd, -)
export ETCDCTL_CACERT=/etc/rockoon/etcd-client/ca.crt ETCDCTL_CERT=/etc/rockoon/etcd-client/tls.crt ETCDCTL_KEY=/etc/rockoon/etcd-client/tls.key
END
done
rm -f new
echo "made: $PWD"

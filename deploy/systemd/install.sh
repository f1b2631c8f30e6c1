#!/usr/bin/env bash
# Installs or upgrades Rockoon on this machine: users, /opt/rockoon, /etc/rockoon, units. Starts and restarts nothing.
# Usage: install.sh FOLDER, as root, where FOLDER is the machine's folder of prepare.sh. Run it beside dist/ with the wheels and etcd.
set -euo pipefail
# Services of other users read programs and units; the files of a machine are only for their groups.
umask 022
[ $# -eq 1 ] && [ -d dist ] && [ -e "$1/profile.sh" ] ||
  { echo "usage: install.sh FOLDER, beside dist/, where FOLDER is a machine's folder of prepare.sh" >&2; exit 2; }
folder=$1 here=$(dirname "$0")

for user in rockoon rockoon-etcd; do
  id -u "$user" >/dev/null 2>&1 || useradd --system --home-dir /var/lib/rockoon --no-create-home --shell /usr/sbin/nologin "$user"
done

[ -x /opt/rockoon/bin/python ] || python3 -m venv /opt/rockoon
/opt/rockoon/bin/pip install --quiet --disable-pip-version-check --no-index --find-links dist --force-reinstall \
  rockoon rockoon-nameserver rockoon-broker rockoon-offset rockoon-gateway
# A running program cannot be overwritten, but replaced.
install -m 755 dist/etcd /opt/rockoon/bin/etcd.new
mv /opt/rockoon/bin/etcd.new /opt/rockoon/bin/etcd

install -d /etc/rockoon
(umask 077 && cp -r "$folder"/. /etc/rockoon)
mv /etc/rockoon/profile.sh /etc/profile.d/rockoon.sh
# The keys of etcd never belong to the group of the services.
find /etc/rockoon \( -path /etc/rockoon/etcd -o -path /etc/rockoon/etcd.env \) -prune -o -exec chown root:rockoon {} +
chown -R root:rockoon-etcd /etc/rockoon/etcd /etc/rockoon/etcd.env
chmod -R u=rwX,g=rX,o= /etc/rockoon
chmod 755 /etc/rockoon
chmod 644 /etc/profile.d/rockoon.sh

# Stores, which only their user may open.
sed -n 's/^store_path = "\(.*\)"$/\1/p' /etc/rockoon/*.toml | xargs -r install -d -m 700 -o rockoon -g rockoon

cp "$here"/*.service /etc/systemd/system
cp -r "$here"/rockoon-.service.d /etc/systemd/system
systemctl daemon-reload
/opt/rockoon/bin/rockoon --version
